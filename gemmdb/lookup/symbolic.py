"""Symbolic sizes: the sample sizes of a range, the best single config for all of them, and the split of a range of M
into a few intervals with one config each, where no single config is good everywhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any, NamedTuple, Protocol

from gemmdb.errors import InputError
from gemmdb.hit import LARGEST, Branches
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.lookup.ask import Ask, Candidate
from gemmdb.lookup.prediction import Prediction, remembered
from gemmdb.rejected import Rejected

MOST_BUCKETS = 64
"""Maximum number of buckets. Several symbolic sizes may need more; ATen serves those."""
MOST_KERNELS = 3
"""Maximum number of kernels for one range. Each costs a compile, and a comparison per call."""


@dataclass(frozen=True)
class Bucket:
    """One size of a range with its prediction. Without a prediction (None), ATen serves it."""

    problem: Problem
    prediction: Prediction | None

    def log_ratio(self, config: Config, loss: float) -> float | None:
        """Return the log of the config's time relative to ATen, including the prediction's uncertainty. None if that is
        slower than ATen by more than `loss`."""
        if config == ATEN:
            return 0.0
        ratio = math.inf if self.prediction is None else self.prediction.ratios.get(config, math.inf)
        if self.prediction is None or ratio > 1 + loss:
            return None
        if self.prediction.rung != "exact":
            ratio *= 1 + self.prediction.loss(config) - self.prediction.regret(config)
        return math.log(ratio) if ratio <= 1 + loss else None

    def facts(self, config: Config) -> dict[str, Any]:
        """Return what is expected of a config here, as evidence: without a prediction of it no times."""
        problem, found = self.problem, self.prediction
        facts: dict[str, Any] = {"m": problem.m, "n": problem.n, "k": problem.k, "rung": found and found.rung}
        if found is None or config not in found.ratios:
            return {**facts, "regret": 0.0}
        ratio, spread = found.ratios[config], found.off(config)
        times = {"expected_us": ratio * found.aten_us, "speedup": 1 / ratio, "spread": spread}
        return {**facts, "regret": found.regret(config), **times}

    def regret(self, config: Config) -> float:
        """Return the config's expected slowdown against the best config."""
        return 0.0 if self.prediction is None else self.prediction.regret(config)


class Sized(Protocol):
    """What a division asks of a size: its problem, the log of a config's time relative to ATen's (None if it is
    unknown, or slower than ATen by more than `loss`), and its slowdown against the best config."""

    @property
    def problem(self) -> Problem: ...

    def log_ratio(self, config: Config, loss: float) -> float | None: ...

    def regret(self, config: Config) -> float: ...


class Limits(NamedTuple):
    """What a division must keep. `needed`: the mean gain of each interval over ATen. `regret`: the largest loss against
    ATen in any size. `shared`: the mean loss for which fewer intervals are preferred."""

    needed: float
    regret: float
    shared: float


class Interval(NamedTuple):
    """Adjacent buckets, first to last, served by one config. `total`: the sum of their log ratios."""

    first: int
    last: int
    config: Config
    total: float


def sizes(ask: Ask) -> list[Problem]:
    """Return the problem at the endpoints and powers of two of each range, and at the hint; at most MOST_BUCKETS + 1.

    An open range ends at LARGEST or at the hint. A size of 0 is skipped, since there is nothing to compute. Raises
    InputError for an empty range, or a range for a size other than m, n and k.
    """
    found = {name: {int(getattr(ask.problem, name))} for name in ("m", "n", "k")}
    for name, (low, high) in ask.query.ranges.items():
        if name not in found or low < 0 or (high is not None and high < low):
            raise InputError(f"no such range: {name} from {low} to {high}")
        top = max(low, *found[name], LARGEST if high is None else min(high, LARGEST))
        powers = {2**exponent for exponent in range(top.bit_length())}
        found[name] |= {size for size in powers | {low, top} if size >= max(low, 1)}
    grid = product(*(sorted(values) for values in found.values()))
    return [ask.problem.resized(m, n, k) for m, n, k in islice(grid, MOST_BUCKETS + 1)]


def predictions(
    ask: Ask, problems: Iterable[Problem], predict: Callable[[Ask], Prediction | Rejected]
) -> Iterator[Bucket]:
    """Yield each problem's bucket, with its prediction from `predict`."""
    for problem in problems:
        found = remembered(ask.at(problem), "size of a range", predict)
        yield Bucket(problem, found if isinstance(found, Prediction) else None)


def ranges_of(ask: Ask) -> dict[str, list[int | None]]:
    """Return the query's ranges, JSON-ready."""
    return {name: [low, high] for name, (low, high) in ask.query.ranges.items()}


def unverified(buckets: Iterable[Bucket]) -> bool:
    """Return whether any bucket's rows are not valid for the running toolchain."""
    return any(one.prediction is not None and one.prediction.verified is False for one in buckets)


def best_of_all(
    ask: Ask, buckets: Sequence[Bucket], needed: float, most_regret: float, most_doubt: float
) -> Candidate | Rejected:
    """Return the config with the smallest total time relative to ATen among those with a regret of at most
    `most_regret` in every bucket. Every bucket has a prediction. `needed`: minimum gain at the hint; `most_doubt`:
    maximum relative uncertainty of its times."""
    known = [one.prediction for one in buckets if one.prediction is not None]
    at_hint = next(found for one, found in zip(buckets, known, strict=True) if one.problem == ask.problem)
    enough = [config for config, gained in at_hint.gains.items() if config != ATEN and gained >= needed]
    worst = {config: _worst_regret(config, known, most_doubt) for config in enough}
    fits = [config for config in enough if worst[config] <= most_regret]
    if not fits:
        if not worst:
            return Rejected("no config gains enough at the hint")
        least = min(worst.values())
        if math.isinf(least):
            return Rejected("no config that gains at the hint has certain times at all sizes of the range")
        return Rejected(f"the least worst regret of any config is {least:.1%}")
    best = min(fits, key=lambda config: (sum(math.log(one.ratios[config]) for one in known), config.text))
    evidence = {
        "range": ranges_of(ask),
        "worst_regret": worst[best],
        "sizes": [one.facts(best) for one in buckets],
        "spread": at_hint.off(best),
        "verified": False if unverified(buckets) else at_hint.verified,
    }  # fmt: skip
    ratio, us = at_hint.ratios[best], at_hint.aten_us
    reason = f"{best.name} loses at most {worst[best]:.1%} in each of {len(buckets)} buckets"
    return Candidate(best, ratio * us, 1 / ratio, us, at_hint.table, evidence, reason)


def _worst_regret(config: Config, known: Iterable[Prediction], most_doubt: float) -> float:
    """Return the config's largest regret; infinite if a bucket lacks it or its uncertainty there exceeds
    `most_doubt`."""
    worst = 0.0
    for one in known:
        if one.doubt.get(config, math.inf) > most_doubt:
            return math.inf
        worst = max(worst, one.regret(config))
    return worst


def may_fit(buckets: Iterable[Bucket], most_regret: float) -> bool:
    """Return whether any config other than ATen has at most this regret in all buckets with a prediction from a quiet
    machine."""
    known = [one.prediction for one in buckets if one.prediction is not None and not one.prediction.disturbed]
    if not known:
        return True
    configs = set(known[0].ratios).intersection(*(one.ratios for one in known)) - {ATEN}
    return any(all(one.regret(config) <= most_regret for one in known) for config in configs)


def unfused(problem: Problem) -> Problem | None:
    """Return the problem whose rows determine the split of its range of M: as with ATen, nothing is fused into a kernel
    that is chosen at run time. None if the range cannot be split: an integer GEMM and its scale are one kernel, and a
    constant weight is packed for one kernel."""
    if problem.constant:
        return None
    if problem.fusion == "none" or (problem.spec.dequantises and problem.fusion == "scale"):
        return problem
    return None if problem.epilogue is None else replace(problem, fusion="none")


def divide(sizes: Sequence[Sized], configs: Collection[Config], limits: Limits, most: int) -> list[Interval]:
    """Split a range of M among `configs` for the largest mean gain over ATen across all sizes, into at most `most`
    intervals; empty if they do not cover it.

    No interval is slower than ATen in any size by more than the limits' `regret`, and each gains at least `needed`.
    Among splits within `shared` of the best, the one with the fewest intervals wins.
    """
    intervals = _best_of_each(sizes, configs, limits)
    best: list[list[_Chain | None]] = [[_Chain() if end == 0 else None for end in range(len(sizes) + 1)]]
    for _ in range(most):
        best.append(_one_more(best[-1], intervals))
    whole = [divided for level in best if (divided := level[-1])]
    if not whole:
        return []
    enough = min(one.total for one in whole) + math.log1p(limits.shared) * len(sizes)
    return next(divided for divided in whole if divided.total <= enough).intervals()


class _Chain(NamedTuple):
    """Intervals one after the other: the last, and those before it. `total`: the sum of theirs."""

    total: float = 0.0
    last: Interval | None = None
    before: _Chain | None = None

    def intervals(self) -> list[Interval]:
        """Return the intervals, the first first."""
        found, chain = list[Interval](), self
        while chain.last is not None and chain.before is not None:
            found.append(chain.last)
            chain = chain.before
        return found[::-1]


def _best_of_each(
    sizes: Sequence[Sized], configs: Collection[Config], limits: Limits
) -> dict[tuple[int, int], Interval]:
    """Return the config with the largest gain for each run of adjacent sizes."""
    least = -math.log1p(limits.needed)
    found: dict[tuple[int, int], Interval] = {}
    for config in sorted(configs, key=lambda config: config.text):
        values = [one.log_ratio(config, limits.regret) for one in sizes]
        for first in range(len(sizes)):
            total = 0.0
            for last in range(first, len(sizes)):
                value = values[last]
                if value is None:
                    break
                total += value
                if config != ATEN and total > least * (last - first + 1):
                    continue
                interval = found.get((first, last))
                if interval is None or total < interval.total:
                    found[first, last] = Interval(first, last, config, total)
    return found


def _one_more(before: list[_Chain | None], intervals: Mapping[tuple[int, int], Interval]) -> list[_Chain | None]:
    """Return the best splits of the first buckets into one more interval than in `before`, indexed by their end."""
    after: list[_Chain | None] = [None] * len(before)
    for (first, last), interval in intervals.items():
        start, end = before[first], after[last + 1]
        # Equal configs are one object here.
        if start is None or (start.last is not None and start.last.config is interval.config):
            continue
        total = start.total + interval.total
        if end is None or total < end.total:
            after[last + 1] = _Chain(total, interval, start)
    return after


def branches(buckets: Sequence[Sized], intervals: Sequence[Interval]) -> Branches:
    """The config of each interval with the largest M that it serves; empty for a single interval."""
    limits = [buckets[one.last].problem.m for one in intervals[:-1]]
    return tuple(zip([*limits, None], [one.config for one in intervals], strict=True)) if limits else ()


def kernels(buckets: Sequence[Sized], intervals: Iterable[Interval]) -> list[dict[str, Any]]:
    """Return the expected results of each interval's config, JSON-ready."""
    parts = [(one, buckets[one.first : one.last + 1]) for one in intervals]
    return [
        {
            "m": [bucket.problem.m for bucket in inside],
            "config": one.config.text,
            "mean_gain": math.expm1(-one.total / len(inside)),
            "worst_regret": max(bucket.regret(one.config) for bucket in inside),
        }
        for one, inside in parts
    ]
