"""Medians, gains, and their 95% intervals from order statistics, without assumptions about the distribution of the
noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from gemmdb.table.measurement import Times

CONFIDENCE = 0.95
MANY, NORMAL = 1_000, 1.96
"""From MANY samples on the binomial distribution is as good as normal, with 95% within NORMAL standard deviations."""


@dataclass(frozen=True, slots=True)
class Span:
    """The median of microseconds, and a 95% interval around it."""

    us: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """Half the width of the interval, relative to the median."""
        return (self.high - self.low) / 2 / self.us


@dataclass(frozen=True, slots=True)
class Gain:
    """How many times faster something is, and the interval of that."""

    value: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """`faster`, `slower`, or `no difference` where the interval contains 1."""
        return "faster" if self.low > 1 else "slower" if self.high < 1 else "no difference"


def span(samples_us: Sequence[float]) -> Span:
    """The median of microsecond samples with its interval."""
    ordered = sorted(samples_us)
    low, high = interval(len(ordered))
    return Span(float(median(ordered)), ordered[low], ordered[high])


def gain(before: Span, after: Span) -> Gain:
    """The gain of `after` over `before`, between the ends of both intervals."""
    return Gain(before.us / after.us, before.low / after.high, before.high / after.low)


def interval(count: int) -> tuple[int, int]:
    """The 0-based ranks of the order statistics that enclose the median of `count` samples with 95% confidence.

    Each sample is above the median with probability 1/2, so the number of samples above it is binomial. With fewer than
    six samples no pair of ranks reaches 95%, and the result is the whole range.
    """
    if count > MANY:
        reach = NORMAL / 2 * math.sqrt(count)
        return math.floor(count / 2 - reach), math.ceil(count / 2 + reach)
    tail, below = (1 - CONFIDENCE) / 2, 0.0
    for rank in range(count // 2 + 1):
        below += math.comb(count, rank) / 2**count
        if below > tail:
            lower = max(rank - 1, 0)
            return lower, count - 1 - lower
    return 0, count - 1


def weighted(parts: Iterable[tuple[float, float, float]]) -> Gain:
    """The gain of many things together, each with its time before, its time after, and how far the latter may be off
    (relative, 0 if unknown). All ends of intervals are taken at once. 1 without any."""
    before = after = least = most = 0.0
    for was, now, spread in parts:
        before, after = before + was, after + now
        least, most = least + now * (1 - min(spread, 0.99)), most + now * (1 + spread)
    return Gain(before / after, before / most, before / least) if after else Gain(1.0, 1.0, 1.0)


def times(samples_us: Sequence[float], reference_us: Sequence[float]) -> Times:
    """The Times of microsecond samples of a candidate and of the reference that was interleaved with it."""
    found = span(samples_us)
    return Times(found.us, found.low, found.high, len(samples_us), float(median(reference_us)))
