"""Divides a range of M into a few intervals with one config each, for ranges where no single config is good
everywhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gemmdb.hit import Hit
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.policy_filter import required_gain
from gemmdb.lookup.prediction import Prediction

MOST = 3
"""The most kernels for one range. Each costs a compile, and a comparison per call."""


@dataclass(frozen=True)
class Bucket:
    """One value of M with its prediction. Without a prediction (None), ATen serves it."""

    m: int
    prediction: Prediction | None

    def log_ratio(self, config: Config, loss: float) -> float | None:
        """The logarithm of the config's time relative to ATen, with the prediction's doubt added. None if that is
        slower than ATen by more than `loss`."""
        if config == ATEN:
            return 0.0
        ratio = math.inf if self.prediction is None else self.prediction.ratios.get(config, math.inf)
        if self.prediction is None or ratio > 1 + loss:
            return None
        if self.prediction.rung != "exact":
            ratio *= 1 + self.prediction.loss(config) - self.prediction.regret(config)
        return math.log(ratio) if ratio <= 1 + loss else None


@dataclass(frozen=True)
class Interval:
    """Adjacent buckets, first to last, that one config serves. `total`: the sum of their log ratios."""

    first: int
    last: int
    config: Config
    total: float


def unfused(problem: Problem) -> Problem | None:
    """The problem whose rows decide: as with ATen, nothing is fused into a kernel that is chosen at run time. None if
    the range cannot be divided: an integer product and its scale are one kernel, and a constant weight is packed for
    one kernel."""
    if problem.constant:
        return None
    if problem.fusion == "none" or (problem.spec.dequantises and problem.fusion == "scale"):
        return problem
    return None if problem.epilogue is None else replace(problem, fusion="none")


def divide(ask: Ask, buckets: Sequence[Bucket]) -> list[Interval]:
    """The division of the range with the largest mean gain over ATen over all buckets; ATen if nothing gains.

    No interval is slower than ATen in any bucket by more than the policy's regret, and each has the gain that the
    policy requires. Among divisions within the policy's regret of the best, the one with the fewest intervals wins.
    """
    intervals = _candidates(ask, buckets)
    best: list[list[list[Interval] | None]] = [[[] if end == 0 else None for end in range(len(buckets) + 1)]]
    for _ in range(MOST):
        best.append(_one_more(best[-1], intervals, len(buckets)))
    whole = [divided for level in best if (divided := level[-1])]
    if not whole:
        return [Interval(0, len(buckets) - 1, ATEN, 0.0)]
    least = min(_total(divided) for divided in whole)
    enough = least + math.log1p(ask.policy.range_regret) * len(buckets)
    return next(divided for divided in whole if _total(divided) <= enough)


def _candidates(ask: Ask, buckets: Sequence[Bucket]) -> dict[tuple[int, int], Interval]:
    """For each run of adjacent buckets, the config with the largest gain."""
    known = [one.prediction for one in buckets if one.prediction is not None]
    verified = False if any(one.verified is False for one in known) else None
    needed = -math.log1p(required_gain(ask.policy, verified))
    configs = sorted({ATEN}.union(*(one.gains for one in known)), key=lambda config: config.text)
    loss = ask.policy.range_regret
    ratios = {config: [bucket.log_ratio(config, loss) for bucket in buckets] for config in configs}
    found: dict[tuple[int, int], Interval] = {}
    for config, values in ratios.items():
        for first in range(len(buckets)):
            total = 0.0
            for last in range(first, len(buckets)):
                value = values[last]
                if value is None:
                    break
                total += value
                if config != ATEN and total > needed * (last - first + 1):
                    continue
                interval = found.get((first, last))
                if interval is None or total < interval.total:
                    found[first, last] = Interval(first, last, config, total)
    return found


def _one_more(
    before: list[list[Interval] | None], intervals: dict[tuple[int, int], Interval], count: int
) -> list[list[Interval] | None]:
    """The best divisions of the first buckets into one interval more than those in `before`, indexed by their end."""
    after: list[list[Interval] | None] = [None] * (count + 1)
    for (first, last), interval in intervals.items():
        start, end = before[first], after[last + 1]
        if start is None or (start and start[-1].config == interval.config):
            continue
        divided = [*start, interval]
        if end is None or _total(divided) < _total(end):
            after[last + 1] = divided
    return after


def _total(intervals: Iterable[Interval]) -> float:
    return sum(interval.total for interval in intervals)


def hit(ask: Ask, hint: Hit, buckets: Sequence[Bucket], intervals: Sequence[Interval]) -> Hit:
    """The Hit for these intervals."""
    limits = [buckets[interval.last].m for interval in intervals[:-1]]
    branches = tuple(zip([*limits, None], [interval.config for interval in intervals], strict=True))
    here = next(interval for interval in intervals if buckets[interval.last].m >= ask.problem.m)
    at_hint = next(one.prediction for one in buckets if one.m == ask.problem.m)
    known = [one.prediction for one in buckets if one.prediction is not None]
    ratio = 1.0 if at_hint is None else at_hint.ratios.get(here.config, 1.0)
    aten_us = hint.expected_us * hint.speedup if at_hint is None else at_hint.aten_us
    evidence = {
        "range": {name: list(ends) for name, ends in ask.query.ranges.items()},
        "kernels": [_told(buckets, interval) for interval in intervals],
        "spread": 0.0 if at_hint is None else at_hint.off(here.config),
        "verified": False if any(one.verified is False for one in known) else hint.evidence.get("verified"),
    }
    rung = "exact" if all(one.rung == "exact" for one in known) else "near"
    return Hit(
        rung, here.config, ratio * aten_us, 1 / ratio, hint.table, evidence, branches if len(branches) > 1 else ()
    )


def _told(buckets: Sequence[Bucket], interval: Interval) -> dict[str, object]:
    inside = buckets[interval.first : interval.last + 1]
    return {
        "m": [one.m for one in inside],
        "config": interval.config.text,
        "mean_gain": math.expm1(-interval.total / len(inside)),
        "worst_regret": max(_regret(one, interval.config) for one in inside),
    }


def _regret(bucket: Bucket, config: Config) -> float:
    return 0.0 if bucket.prediction is None else bucket.prediction.regret(config)
