"""Medians and their 95% intervals from order statistics, without assumptions about the distribution of the noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from gemmdb.table.measurement import Times

CONFIDENCE = 0.95


def interval(count: int) -> tuple[int, int]:
    """The 0-based ranks of the order statistics that enclose the median of `count` samples with 95% confidence.

    Each sample is above the median with probability 1/2, so the number of samples above it is binomial. With fewer than
    six samples no pair of ranks reaches 95%, and the result is the whole range.
    """
    tail, below = (1 - CONFIDENCE) / 2, 0.0
    for rank in range(count // 2 + 1):
        below += math.comb(count, rank) / 2**count
        if below > tail:
            lower = max(rank - 1, 0)
            return lower, count - 1 - lower
    return 0, count - 1


def times(samples_us: Sequence[float], reference_us: Sequence[float]) -> Times:
    """The Times of microsecond samples of a candidate and of the reference that was interleaved with it."""
    ordered = sorted(samples_us)
    low, high = interval(len(ordered))
    return Times(float(median(ordered)), ordered[low], ordered[high], len(ordered), float(median(reference_us)))
