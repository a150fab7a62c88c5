"""Several configs for one range of M, each for a part of it, where no single one holds everywhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gemmdb.hit import Hit
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.ladder.ask import Ask
from gemmdb.ladder.policy_filter import required_gain
from gemmdb.ladder.prediction import Forecast

MOST = 3
"""Kernels that a range is divided among at most: each is one more to compile, and one more comparison per call."""


@dataclass(frozen=True)
class Bucket:
    """One value of M with what is known of the configs there; None: nothing, and then it is ATen's."""

    m: int
    forecast: Forecast | None

    def log_ratio(self, config: Config, loss: float) -> float | None:
        """Of the time relative to ATen, were the forecast off by its doubt; None where that is slower than ATen by
        more than `loss`."""
        if config == ATEN:
            return 0.0
        ratio = math.inf if self.forecast is None else self.forecast.ratios.get(config, math.inf)
        if self.forecast is None or ratio > 1 + loss:
            return None
        if self.forecast.rung != "exact":
            ratio *= 1 + self.forecast.loss(config) - self.forecast.regret(config)
        return math.log(ratio) if ratio <= 1 + loss else None


@dataclass(frozen=True)
class Part:
    """Neighbouring buckets, the first to the last, that one config takes; `total`: sum of log ratios."""

    first: int
    last: int
    config: Config
    total: float


def unfused(problem: Problem) -> Problem | None:
    """The problem that decides: nothing is fused into a kernel that is chosen at run time, as nothing is into ATen's.
    None where a product cannot be divided: an integer one and its scale are one kernel, and a constant weight is packed
    for one."""
    if problem.constant:
        return None
    if problem.fusion == "none" or (problem.op, problem.fusion) == ("mixed_mm", "scale"):
        return problem
    return replace(problem, fusion="none") if problem.fusion == "pointwise" else None


def divide(ask: Ask, buckets: Sequence[Bucket]) -> list[Part]:
    """The parts of the range that gain most over ATen, the mean over all buckets, in order; ATen alone where nothing
    gains. Nowhere is a part slower than ATen by more than the policy's regret, and each gains what the policy asks.

    Of divisions that are within the policy's regret of the best, that with the fewest parts.
    """
    parts = _candidates(ask, buckets)
    best: list[list[list[Part] | None]] = [[[] if end == 0 else None for end in range(len(buckets) + 1)]]
    for _ in range(MOST):
        best.append(_one_more(best[-1], parts, len(buckets)))
    whole = [divided for level in best if (divided := level[-1])]
    if not whole:
        return [Part(0, len(buckets) - 1, ATEN, 0.0)]
    least = min(_total(divided) for divided in whole)
    enough = least + math.log1p(ask.policy.range_regret) * len(buckets)
    return next(divided for divided in whole if _total(divided) <= enough)


def _candidates(ask: Ask, buckets: Sequence[Bucket]) -> dict[tuple[int, int], Part]:
    """For each run of buckets the config that gains most there."""
    known = [one.forecast for one in buckets if one.forecast is not None]
    verified = False if any(one.verified is False for one in known) else None
    needed = -math.log1p(required_gain(ask.policy, verified))
    configs = sorted({ATEN}.union(*(one.gains for one in known)), key=lambda config: config.text)
    loss = ask.policy.range_regret
    ratios = {config: [bucket.log_ratio(config, loss) for bucket in buckets] for config in configs}
    found: dict[tuple[int, int], Part] = {}
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
                part = found.get((first, last))
                if part is None or total < part.total:
                    found[first, last] = Part(first, last, config, total)
    return found


def _one_more(
    before: list[list[Part] | None], parts: dict[tuple[int, int], Part], count: int
) -> list[list[Part] | None]:
    """The best divisions of the first buckets into one part more than those of `before`, by where they end."""
    after: list[list[Part] | None] = [None] * (count + 1)
    for (first, last), part in parts.items():
        start, end = before[first], after[last + 1]
        if start is None or (start and start[-1].config == part.config):
            continue
        divided = [*start, part]
        if end is None or _total(divided) < _total(end):
            after[last + 1] = divided
    return after


def _total(parts: Iterable[Part]) -> float:
    return sum(part.total for part in parts)


def hit(ask: Ask, hint: Hit, buckets: Sequence[Bucket], parts: Sequence[Part]) -> Hit:
    """The answer that `parts` are."""
    limits = [buckets[part.last].m for part in parts[:-1]]
    branches = tuple(zip([*limits, None], [part.config for part in parts], strict=True))
    here = next(part for part in parts if buckets[part.last].m >= ask.problem.m)
    at_hint = next(one.forecast for one in buckets if one.m == ask.problem.m)
    known = [one.forecast for one in buckets if one.forecast is not None]
    ratio = 1.0 if at_hint is None else at_hint.ratios.get(here.config, 1.0)
    aten_us = hint.expected_us * hint.speedup if at_hint is None else at_hint.aten_us
    evidence = {
        "range": {name: list(ends) for name, ends in ask.query.ranges.items()},
        "kernels": [_told(buckets, part) for part in parts],
        "verified": False if any(one.verified is False for one in known) else hint.evidence.get("verified"),
    }
    rung = "exact" if all(one.rung == "exact" for one in known) else "near"
    return Hit(
        rung, here.config, ratio * aten_us, 1 / ratio, hint.table, evidence, branches if len(branches) > 1 else ()
    )


def _told(buckets: Sequence[Bucket], part: Part) -> dict[str, object]:
    inside = buckets[part.first : part.last + 1]
    return {
        "m": [one.m for one in inside],
        "config": part.config.text,
        "mean_gain": math.expm1(-part.total / len(inside)),
        "worst_regret": max(_regret(one, part.config) for one in inside),
    }


def _regret(bucket: Bucket, config: Config) -> float:
    return 0.0 if bucket.forecast is None else bucket.forecast.regret(config)
