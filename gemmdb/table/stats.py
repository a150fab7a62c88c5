"""Medians, gains, and their 95% intervals from order statistics, with no assumptions about the noise distribution."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, TypeVar

from gemmdb.table.measurement import Times

CONFIDENCE = 0.95
NO_DIFFERENCE = "no difference"
"""Verdict on a gain whose interval contains 1: it may be chance."""
MANY, NORMAL = 1_000, 1.96
"""With MANY samples or more, the binomial distribution is approximated as normal, with 95% within NORMAL standard
deviations."""

Name = TypeVar("Name")


@dataclass(frozen=True, slots=True)
class Span:
    """A median in microseconds, and its 95% interval."""

    us: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """Half the width of the interval, relative to the median."""
        return (self.high - self.low) / 2 / self.us


@dataclass(frozen=True, slots=True)
class Gain:
    """A speedup and its interval. `str` claims a difference only if it is certain. `ranged`: the value holds for the
    recorded sizes of ranges, and the interval for all their sizes."""

    value: float
    low: float
    high: float
    ranged: bool = False

    def __str__(self) -> str:
        if self.ranged:
            return f"{self.value:.2f}x at the recorded sizes, {self.short} over their ranges"
        if self.low == self.high:
            return self.short
        return f"{self.short}, between {self.low:.2f}x and {self.high:.2f}x"

    @property
    def short(self) -> str:
        """The speedup without its interval, or `no difference`; over ranges only the interval."""
        if self.ranged:
            return f"{self.low:.2f}x to {self.high:.2f}x"
        return NO_DIFFERENCE if self.verdict == NO_DIFFERENCE else f"{self.value:.2f}x"

    @property
    def verdict(self) -> str:
        """`faster`, `slower`, or `no difference` where the interval contains 1."""
        return "faster" if self.low > 1 else "slower" if self.high < 1 else NO_DIFFERENCE


class Part(NamedTuple):
    """The times of something before and after, in any unit, and the ends of the interval of the latter. `ranged`: as of
    a Gain."""

    before: float
    after: float
    least: float
    most: float
    ranged: bool = False

    @classmethod
    def of(cls, before: float, after: float, spread: float) -> Part:
        """Return a part by the relative uncertainty of the time after, 0 if unknown."""
        return cls(before, after, after * (1 - min(spread, 0.99)), after * (1 + spread))

    @classmethod
    def total(cls, parts: Iterable[Part]) -> Part:
        """Return the sums of several parts."""
        before, after, least, most, ranged = map(sum, zip(cls(0.0, 0.0, 0.0, 0.0), *parts, strict=True))
        return cls(before, after, least, most, bool(ranged))

    def times(self, number: float) -> Part:
        """Return the part that many times."""
        return Part(number * self.before, number * self.after, number * self.least, number * self.most, self.ranged)

    @property
    def gain(self) -> Gain:
        """The speedup; 1 if nothing takes time."""
        if not self.after:
            return Gain(1.0, 1.0, 1.0)
        return Gain(self.before / self.after, self.before / self.most, self.before / self.least, self.ranged)


def turns(names: Sequence[Name], index: int) -> list[Name]:
    """Return the names in the order of round `index`. What the GPU ran just before changes the time of a kernel, by 1%
    where it is short. So over the rounds, each name comes just after each other one equally often (a Williams
    design)."""
    zigzag = ((place + 1) // 2 if place % 2 else -(place // 2) for place in range(len(names)))
    order = [names[(place + index // 2) % len(names)] for place in zigzag]
    return order[::-1] if index % 2 else order


def span(samples_us: Sequence[float]) -> Span:
    """Return the median of microsecond samples with its interval."""
    ordered = sorted(samples_us)
    low, high = interval(len(ordered))
    return Span(float(median(ordered)), ordered[low], ordered[high])


def gain(before: Span, after: Span) -> Gain:
    """Return the gain of `after` over `before`, with worst-case interval ends."""
    return Gain(before.us / after.us, before.low / after.high, before.high / after.low)


def interval(count: int) -> tuple[int, int]:
    """Return the 0-based ranks of the order statistics that enclose the median of `count` samples with 95% confidence.

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


def weighted(parts: Iterable[Part]) -> Gain:
    """Return the combined gain of several parts. The interval assumes that all parts are at the same end. 1 without
    parts."""
    return Part.total(parts).gain


def paired(samples: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return series of samples that were taken in turn, without what the samples of a round share: clocks, and the time
    of the empty graph that was subtracted from all of them. Their intervals then say how sure the ratio of two series
    is. Each sample is divided by the geometric mean of its round and multiplied by the median of these means."""
    means = [math.exp(sum(map(math.log, found)) / len(found)) for found in zip(*samples, strict=True)]
    middle = median(means) if means else 0.0
    return [[one * middle / mean for one, mean in zip(series, means, strict=True)] for series in samples]


def times(samples_us: Sequence[float], reference_us: Sequence[float]) -> Times:
    """Return the Times from microsecond samples of a candidate and of the interleaved reference."""
    found = span(samples_us)
    return Times(found.us, found.low, found.high, len(samples_us), float(median(reference_us)))
