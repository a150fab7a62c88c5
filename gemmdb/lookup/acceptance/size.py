"""One size of a symbolic M: its answer as for a fixed M, and what is known about other configs there."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    """One size of the range: its lookup, and the answer for a fixed M. Without an answer (None), ATen serves it."""

    at: Ask
    hit: Hit | None

    def known(self, config: Config) -> Prediction | None:
        """Return what is known about another config here: from rows of the size, else from those of the GEMM with
        another epilogue, else from the estimates of its search. A size whose answer is of rung
        `exact` does not ask its neighbours, whose prediction takes most of the time of a lookup."""
        own = next((one for one in self._measured if config in one.ratios), None)
        if own is not None:
            return own
        if self._estimated is not None and config in self._estimated.ratios:
            return self._estimated
        if self.hit is not None and self.hit.rung == "exact":
            return None
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


def size_of(ask: Ask, m: int, rows: Range) -> Size:
    """Return a size of a lookup for a range, whose config is legal for all of `rows`."""
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
