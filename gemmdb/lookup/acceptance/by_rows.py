"""Rung `range` for a symbolic M: the answers for fixed sizes of the range, joined to intervals of one config each.

At each size that decides, all rungs answer as for a fixed M, but only with what can share one node of a graph
(`gemmdb.lookup.lowering.joins`). So epilogues stay fused, and what runs at a size is what a compile for that size
alone would run, unless a neighbouring size's config is as good.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gemmdb.hit import RUNGS, Hit, Range
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.canonical import lazy
from gemmdb.key.problem import Problem
from gemmdb.lookup import lowering, symbolic
from gemmdb.lookup.acceptance import confirming, required_gain
from gemmdb.lookup.acceptance.epilogue import epilogue
from gemmdb.lookup.acceptance.extern import exact_or_extern, unmeasured
from gemmdb.lookup.acceptance.model import model
from gemmdb.lookup.acceptance.near import near_unless_measured, predict, sku
from gemmdb.lookup.acceptance.ranges import ranged
from gemmdb.lookup.ask import Ask, Step, Within
from gemmdb.lookup.bounds import certain
from gemmdb.lookup.other_epilogue import stand_ins
from gemmdb.lookup.prediction import Prediction, estimated, measured, remembered
from gemmdb.lookup.symbolic import Interval
from gemmdb.rejected import Rejected

MOST_KERNELS = 16
"""Maximum number of intervals of one range. Each costs a comparison per call, and a compile if its kernel serves no
other interval. With 12, open ranges lose up to 5% at sizes that a compile for that size alone serves."""
SHARED_LOSS = 0.1
"""What fewer kernels may lose in the mean, as a share of `Policy.range_regret`."""
BETWEEN = 16
"""From this M on, a size between each two powers of two decides, too: another number of tiles fits the GPU there."""
MOST_ROWS = 8192
"""The largest size that a compile benchmarks: an open range ends far above what runs. A config that was not measured
for a larger size must certainly be faster than ATen there, by measurements of its neighbors."""
MOST_RETRIES = 4
"""Maximum number of configs of one size whose calls take the host too long; then ATen serves it."""
_MEASURED = (exact_or_extern, near_unless_measured, epilogue, sku)


@dataclass(frozen=True)
class Size:
    """One size of the range: its lookup, and the answer for a fixed M. Without an answer (None), ATen serves it."""

    at: Ask
    hit: Hit | None

    def known(self, config: Config) -> Prediction | None:
        """Return what is known about another config here: from rows of the size, else from those of the GEMM with
        another epilogue, else from the estimates of its search, else from its neighbours, whose prediction takes most
        of the time of a lookup."""
        measured = next((one for one in self._measured if config in one.ratios), None)
        if measured is not None:
            return measured
        if self._estimated is not None and config in self._estimated.ratios:
            return self._estimated
        return self._guess if self._guess is not None and config in self._guess.ratios else None

    @lazy
    def _measured(self) -> Sequence[Prediction]:
        asks = (self.at, *(self.at.at(one) for one in stand_ins(self.problem, self.at.device.kind)))
        return [found for one in asks if (found := measured(one)) is not None]

    @lazy
    def _estimated(self) -> Prediction | None:
        return estimated(self.at) if confirming(self.at) else None

    @lazy
    def _guess(self) -> Prediction | None:
        guess = predict(self.at) if self.at.policy.near else None
        if not isinstance(guess, Prediction):
            return None
        kept = guess if confirming(self.at) else certain(self.at, guess)
        return kept if isinstance(kept, Prediction) else None

    @property
    def problem(self) -> Problem:
        """The problem at this size."""
        return self.at.problem

    @property
    def config(self) -> Config:
        """What serves a fixed M of this size."""
        return ATEN if self.hit is None else self.hit.config

    @property
    def decided(self) -> bool:
        """Whether it was measured, or measurements serve it with a kernel."""
        rung = None if self.hit is None else self.hit.rung
        return rung == "exact" or (rung not in (None, "model") and self.config != ATEN)

    @property
    def aten_us(self) -> float | None:
        """ATen's time in microseconds, if it is known."""
        if self.hit is not None:
            return self.hit.expected_us * self.hit.speedup
        known = next(iter(self._measured), None) or self._guess
        return None if known is None else known.aten_us

    def log_ratio(self, config: Config, loss: float) -> float | None:
        """Return the log of the config's time relative to ATen's; None if it is unknown, slower than ATen by more than
        `loss`, or if its calls take the host too long."""
        ratio = self._ratio(config)
        if ratio is None or self.has_slow_calls(config):
            return None
        own = self.hit is not None and config == self.hit.config
        return math.log(ratio) if own or ratio <= 1 + loss else None

    def has_slow_calls(self, config: Config) -> bool:
        """Return whether calls of a config take the host too long, as far as its time is known."""
        ratio = self._ratio(config)
        if ratio is None or config == self.config:
            return config in self.at.left_out
        return _slow(self.at, config, ratio * (self.aten_us or 0.0), 1 / ratio) is not None

    def _ratio(self, config: Config) -> float | None:
        """Return the config's time relative to ATen's, with its uncertainty; None if it is unknown."""
        if config == ATEN:
            return 1.0
        if self.hit is not None and config == self.hit.config:
            return 1 / self.hit.speedup
        found = self.known(config)
        if found is None:
            return None
        doubt = 0.0 if found.rung == "exact" else found.loss(config) - found.regret(config)
        return found.ratios[config] * (1 + doubt)

    def times(self, config: Config) -> dict[str, float]:
        """Return the config's time and gain here, as evidence; empty if ATen's time is unknown."""
        log, aten_us = self.log_ratio(config, math.inf), self.aten_us
        if log is None or aten_us is None:
            return {}
        return {"expected_us": math.exp(log) * aten_us, "speedup": math.exp(-log)}

    def regret(self, config: Config) -> float:
        """Return how much slower the config is than the answer for a fixed M."""
        value, best = self.log_ratio(config, math.inf), self.log_ratio(self.config, math.inf)
        return math.inf if value is None else math.expm1(value - (best or 0.0))


def by_rows(ask: Ask) -> Step:
    """Rung `range`: serve one config for the whole range if it loses little anywhere, else the answers for fixed sizes
    if only M is symbolic, else what `ranged` finds. Raises what `ranged` raises."""
    step = ranged(ask)
    if step.hit is not None and step.hit.config != ATEN and not step.hit.branches:
        return step
    found: tuple[Step | None] = remembered(ask, f"rows {symbolic.ranges_of(ask)}", lambda ask: (_joined(ask, step),))
    return found[0] or step


def _joined(ask: Ask, other: Step) -> Step | None:
    """Return the Step that serves the answers for fixed sizes; None if they cannot be joined, are ATen, or gain less
    than the hit of `other`."""
    if ask.symbolic != ("m",) or ask.policy.batch_invariant or ask.problem.constant:
        return None
    if ask.policy.on_miss == "error":  # Its sizes between those that were measured need no measurement.
        return None
    if ask.problem.op not in lowering.JOINED_OPS:
        return None
    sizes = _sizes(ask)
    configs = {one.config for one in sizes}
    if configs == {ATEN}:
        return None
    needs = configs if lowering.joins(ATEN, ask.problem) else configs - {ATEN}
    intervals = symbolic.divide(sizes, needs, _limits(ask), MOST_KERNELS)
    if not intervals or {one.config for one in intervals} == {ATEN}:
        return None
    if other.hit is not None and _total(sizes, other.hit) <= sum(one.total for one in intervals):
        return None
    return _step(ask, sizes, intervals)


def _total(sizes: Sequence[Size], hit: Hit) -> float:
    """Return the sum of the log ratios of a hit's configs, as far as they are known; infinite if their calls take the
    host too long anywhere."""
    pairs = [(one, hit.at(one.problem.m)) for one in sizes]
    if any(one.has_slow_calls(config) for one, config in pairs):
        return math.inf
    return sum(one.log_ratio(config, math.inf) or 0.0 for one, config in pairs)


def _limits(ask: Ask) -> symbolic.Limits:
    regret = ask.policy.range_regret
    return symbolic.Limits(required_gain(ask.policy, None), regret, SHARED_LOSS * regret)


def _sizes(ask: Ask) -> list[Size]:
    """Return the sizes that decide: the ends of the range, powers of two, the hint, and sizes between them that are
    decided. Where a library's algorithm serves the next size, its time between them is unknown, so that they count in
    any case."""
    whole = {problem.m for problem in symbolic.sizes(ask)}
    between = {3 * m // 2 for m in whole if m >= BETWEEN and m & (m - 1) == 0 and 3 * m // 2 < max(whole)} - whole
    low, high = ask.query.ranges["m"]
    rows = sorted(whole | between)
    below = dict(zip(rows, (low, *(m + 1 for m in rows)), strict=False))
    found: list[Size] = []
    for m in reversed(rows):
        top = m if m != rows[-1] else None if high is None else max(high, m)
        if m not in between:
            found.append(_size(ask, m, (below[m], top)))
            continue
        one = _size(ask, m, (below[m], top))
        if one.decided or found[-1].config.spec.library:
            found.append(one)
    return found[::-1]


def _size(ask: Ask, m: int, rows: Range) -> Size:
    """Return a size whose config is legal for all of `rows`."""
    problem = ask.problem.resized(m, ask.problem.n, ask.problem.k)
    # Nothing is tuned live for a size of a range.
    policy = replace(ask.policy, on_miss="aten", confirm=ask.policy.confirm and m <= MOST_ROWS)
    query = replace(ask.query, problem=problem, ranges={})
    at = replace(ask, query=query, within=_within(ask, problem, rows), policy=policy)
    hit = _answer(at)
    for _ in range(MOST_RETRIES):
        if hit is None or (slow := _slow(at, hit.config, hit.expected_us, hit.speedup)) is None:
            break
        at = replace(at, left_out={**at.left_out, hit.config: slow})
        hit = _answer(at)
    else:
        hit = hit and hit.with_aten()
    return Size(at, hit)


def _answer(at: Ask) -> Hit | None:
    """Return the answer for a fixed M if its config can be one of several, else the best among those that can."""
    alone, within = _first(replace(at, within=None)), at.within
    if alone is not None and (within is None or within.rejection(alone.config, at.problem) is None):
        return alone
    return _first(at)


def _first(at: Ask) -> Hit | None:
    rungs = (*_MEASURED, model) if at.problem.m <= MOST_ROWS else _MEASURED
    return next((step.hit for rung in rungs if (step := rung(at)).hit), None)


def _slow(at: Ask, config: Config, us: float, speedup: float) -> Rejected | None:
    return lowering.slow_calls(config, at.query, us, speedup, at.policy)


def _within(ask: Ask, problem: Problem, rows: Range) -> Within:
    query = replace(ask.query, problem=problem, ranges={"m": rows})

    def rejection(config: Config, problem: Problem) -> Rejected | None:
        if not lowering.joins(config, problem):
            return Rejected("cannot be one of several kernels of a symbolic M")
        # Dozens of configs are asked about for one problem.
        return lowering.rejection(config, query if problem is query.problem else replace(query, problem=problem), rows)

    return Within((rows, tuple(ask.query.ranges.items())), rejection)


def _step(ask: Ask, sizes: Sequence[Size], intervals: Sequence[Interval]) -> Step:
    here = next(one for one in sizes if one.problem.m == ask.problem.m)
    config = next(one.config for one in intervals if sizes[one.last].problem.m >= ask.problem.m)
    log = here.log_ratio(config, math.inf)
    ratio, aten_us = math.exp(log or 0.0), here.aten_us or 0.0
    hits = [one.hit for one in sizes if one.hit is not None]
    rungs = {one.rung for one in hits}
    kernels = symbolic.kernels(sizes, intervals)
    evidence: dict[str, Any] = {
        "range": symbolic.ranges_of(ask), "kernels": kernels,
        "sizes": [
            {"m": one.problem.m, "rung": one.hit and one.hit.rung, "regret": one.regret(config), **one.times(config)}
            for one, config in ((one, served(intervals, place)) for place, one in enumerate(sizes))
        ],
        "verified": False if any(one.evidence.get("verified") is False for one in hits) else None,
    }  # fmt: skip
    if ask.policy.confirm:
        evidence["unmeasured"] = list(_unmeasured(sizes, intervals))
    branches = symbolic.branches(sizes, intervals)
    rung = max(rungs, key=RUNGS.index)
    hit = Hit(rung, config, ratio * aten_us, 1 / ratio, hits[0].table, evidence, branches)
    told = ", ".join(f"{one.config.name} up to m={sizes[one.last].problem.m}" for one in intervals)
    return Step("range", hit, f"as for fixed sizes: {told}", evidence)


def _unmeasured(sizes: Sequence[Size], intervals: Sequence[Interval]) -> Iterator[dict[str, Any]]:
    """Yield each config that was not measured as it will run, at each size up to MOST_ROWS that it serves without: the
    caller benchmarks it at some of them first."""
    for interval in intervals:
        for one in sizes[interval.first : interval.last + 1]:
            if one.problem.m <= MOST_ROWS and _is_guess(one, interval.config):
                ratio = math.exp(one.log_ratio(interval.config, math.inf) or 0.0)
                us = ratio * (one.aten_us or 0.0)
                yield {"m": one.problem.m, "config": interval.config.text, "us": us, "speedup": 1 / ratio}


def _is_guess(size: Size, config: Config) -> bool:
    """Return whether a config serves a size without a measurement of it."""
    if config == ATEN:
        return False
    if size.hit is not None and config == size.hit.config:
        return unmeasured(size.hit.rung, config, size.hit.evidence)
    known = size.known(config)
    return known is None or known.rung != "exact"


def served(intervals: Sequence[Interval], place: int) -> Config:
    """Return the config of the interval with the size at that place."""
    return next(one.config for one in intervals if one.first <= place <= one.last)
