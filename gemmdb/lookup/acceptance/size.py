"""One size of a symbolic M: its answer as for a fixed M, and what is known about other configs there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gemmdb.hit import Hit, Range
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.canonical import lazy
from gemmdb.key.problem import Problem
from gemmdb.lookup import lowering
from gemmdb.lookup.acceptance import confirming
from gemmdb.lookup.acceptance.epilogue import epilogue
from gemmdb.lookup.acceptance.extern import exact_or_extern
from gemmdb.lookup.acceptance.model import model
from gemmdb.lookup.acceptance.near import near_unless_measured, predict, sku
from gemmdb.lookup.ask import Ask, Within
from gemmdb.lookup.bounds import certain
from gemmdb.lookup.other_epilogue import stand_ins
from gemmdb.lookup.prediction import Prediction, estimated, measured
from gemmdb.rejected import Rejected

MOST_ROWS = 8192
"""The largest size that a compile benchmarks: an open range ends far above what runs. A config that was not measured
for a larger size must certainly be faster than ATen there, by measurements of its neighbors."""
MOST_RETRIES = 4
"""Maximum number of configs of one size whose calls take the host too long; then ATen serves it."""
_MEASURED = (exact_or_extern, near_unless_measured, epilogue, sku)


@dataclass(frozen=True)
class Size:
    """One size of the range: its lookup, and the answer for a fixed M. Without an answer (None), ATen serves it.
    `passed_over`: whether the answer for a fixed M alone is another, which cannot be one of several."""

    at: Ask
    hit: Hit | None
    passed_over: bool = False

    @lazy
    def known(self) -> Mapping[Config, Prediction]:
        """What is known about each config here: from rows of the size, else from those of the GEMM with another
        epilogue, else from the estimates of its search, else from its neighbors. A size whose answer is of rung `exact`
        does not ask its neighbors, whose prediction takes most of the time of a lookup."""
        others = (
            estimated(self.at) if confirming(self.at) else None,
            self._guess if self.hit is None or self.hit.rung != "exact" else None,
        )
        found = [*self._measured, *(one for one in others if one is not None)]
        return {config: one for one in reversed(found) for config in one.estimates}

    @lazy
    def _measured(self) -> Sequence[Prediction]:
        asks = (self.at, *(self.at.at(one) for one in stand_ins(self.problem, self.at.device.kind)))
        return [found for one in asks if (found := measured(one)) is not None]

    @lazy
    def _guess(self) -> Prediction | None:
        # Above MOST_ROWS, the answer's own prediction counts, without what cannot be served: another takes as long.
        at = self.at if self.problem.m <= MOST_ROWS else replace(self.at, within=None)
        guess = predict(at) if at.policy.near else None
        if not isinstance(guess, Prediction):
            return None
        guess = guess if confirming(at) else certain(at, guess)
        fit = {c: one for c, one in guess.estimates.items() if c == ATEN or self.at.rejection(c) is None}
        return replace(guess, estimates=fit)

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
        log = self._logs.get(config)
        return None if log is None or (log > math.log1p(loss) and config != self.config) else log

    @lazy
    def _logs(self) -> Mapping[Config, float]:
        """The log of each config's time relative to ATen's, with its uncertainty, without configs whose calls take the
        host too long. A division asks for dozens of configs."""
        aten_us, logs = self.aten_us or 0.0, {}
        for config, found in self.known.items():
            doubt = 0.0 if found.rung == "exact" else found.loss(config) - found.regret(config)
            ratio = found.ratios[config] * (1 + doubt)
            if _slow(self.at, config, ratio * aten_us, 1 / ratio) is None:
                logs[config] = math.log(ratio)
        if self.hit is not None:
            logs[self.hit.config] = -math.log(self.hit.speedup)
        return logs | {ATEN: 0.0}

    def close(self, loss: float) -> set[Config]:
        """Return the configs that are slower than the answer for a fixed M by at most `loss`."""
        return {config for config in self._logs if self.regret(config) <= loss}

    def spread(self, config: Config) -> float:
        """Return the relative uncertainty of the config's time; 0 for ATen, and if it is unknown."""
        if config == ATEN:
            return 0.0
        if self.hit is not None and config == self.hit.config:
            return float(self.hit.evidence.get("spread", 0.0))
        return self.known[config].off(config) if config in self.known else 0.0

    def times(self, config: Config) -> dict[str, float]:
        """Return the config's time, gain and uncertainty here, as evidence; empty if ATen's time is unknown."""
        log, aten_us = self.log_ratio(config, math.inf), self.aten_us
        if log is None or aten_us is None:
            return {}
        return {"expected_us": math.exp(log) * aten_us, "speedup": math.exp(-log), "spread": self.spread(config)}

    def regret(self, config: Config) -> float:
        """Return how much slower the config is than the answer for a fixed M."""
        value, best = self.log_ratio(config, math.inf), self.log_ratio(self.config, math.inf)
        return math.inf if value is None else math.expm1(value - (best or 0.0))


def size_of(ask: Ask, m: int, rows: Range) -> Size:
    """Return a size of a lookup for a range, whose config is legal for all of `rows`."""
    problem = ask.problem.resized(m, ask.problem.n, ask.problem.k)
    # Nothing is tuned live for a size of a range.
    policy = replace(ask.policy, on_miss="aten", confirm=ask.policy.confirm and m <= MOST_ROWS)
    query = replace(ask.query, problem=problem, ranges={})
    at = replace(ask, query=query, within=_within(ask, problem, rows), policy=policy)
    hit, passed_over = _answer(at)
    for _ in range(MOST_RETRIES):
        if hit is None or (slow := _slow(at, hit.config, hit.expected_us, hit.speedup)) is None:
            break
        at = replace(at, left_out={**at.left_out, hit.config: slow})
        hit, passed_over = _answer(at)
    else:
        hit = hit and hit.with_aten()
    return Size(at, hit, passed_over)


def _answer(at: Ask) -> tuple[Hit | None, bool]:
    """Return the answer for a fixed M if its config can be one of several, else the best among those that can, and
    whether it is the latter."""
    alone, within = _first(replace(at, within=None)), at.within
    if alone is None and at.problem.m > MOST_ROWS:
        return None, False  # Nothing is certainly faster than ATen there.
    if alone is not None and (within is None or within.rejection(alone.config, at.problem) is None):
        return alone, False
    return _first(at), alone is not None


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
