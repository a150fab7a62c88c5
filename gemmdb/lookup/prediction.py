"""Prediction: each config's expected time at a problem, with the support of each neighbour. Predictions are cached."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, cast
from weakref import WeakKeyDictionary

from gemmdb.cost.transfer import ConfigGroup, fitted
from gemmdb.kernels import default_mode
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.canonical import lazy
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.evidence import barred, verdict_of
from gemmdb.lookup.timings import Timings, failed, timings_of
from gemmdb.table.reader import Table
from gemmdb.table.record import STEP

CHOICE_DEVIATIONS = 0.7
"""Standard deviations added to a config's time when choosing a config. Among many similar configs, an uncertain one is
likely to look best by chance."""
LOSS_DEVIATIONS = 0.4
"""Standard deviations of the chosen config and of its best rival included in the estimated loss. With this, and
AGREED_ERROR and LOSS_PER_DOUBLING in `from_neighbours`, nine out of ten held-out predictions stay within it
(benchmarks/results/offtable)."""


ESTIMATE_SPREAD = 0.05
"""Standard deviation of the log of a time that is a short estimate, of one or a few timed CUDA graphs. Assumed, not
measured: no row has both an estimate and a full time. It only decides what a compile confirms."""
_KEPT = 4096
"""Maximum number of queries with cached predictions per catalog."""

T = TypeVar("T")
_known: WeakKeyDictionary[Table, dict[object, dict[str, Any]]] = WeakKeyDictionary()
"""By the first table of a catalog: each query's cached results by name."""


class Estimate(NamedTuple):
    """A config's expected time: the `log` of its time relative to ATen's, and the standard deviation of that, 0 if
    measured. `full`: whether it may be served, because it was measured in full somewhere or needs no evidence."""

    log: float
    spread: float
    full: bool

    @property
    def score(self) -> float:
        """The log time plus a penalty for its uncertainty."""
        return self.log + CHOICE_DEVIATIONS * self.spread

    @property
    def gain(self) -> float:
        """The expected gain over ATen."""
        return 1 / math.exp(self.log) - 1


class Support(NamedTuple):
    """The evidence of individual neighbours for a config, as logs of its time relative to ATen. `timed`: number of
    neighbours that timed it. `worst`: the largest single-neighbour prediction. `slowest`: the largest measured
    value."""

    timed: int = 0
    worst: float = -math.inf
    slowest: float = -math.inf


def support_of(
    around: Sequence[Timings], origins: Mapping[Config, tuple[ConfigGroup, float]], aten: float, config: Config
) -> Support:
    """Return the Support of a predicted config from the neighbours `around`. `origins`: the group each config was
    predicted from, and the log of its expected time at the problem; `aten`: the log of ATen's expected time."""
    if config not in origins:
        return Support()
    key, expected = origins[config]
    timed, worst, slowest = 0, -math.inf, -math.inf
    for one in around:
        if key in one.codes:
            value, code, _ = one.codes[key]
            timed += 1
            worst = max(worst, (value - one.least) * STEP - one.aten[0])
            slowest = max(slowest, (code - one.fastest) * STEP - one.aten[1])
    return Support(timed, worst + expected - aten, slowest)


@dataclass(frozen=True)
class Prediction:
    """Expected times relative to ATen at a problem, for the servable configs and ATen itself.

    `estimates`: by config. `far`: the loss added for distance. `aten_us`: ATen's expected time in microseconds.
    `unsafe`: groups that were wrong or crashed at a neighbour. `beside`: whether a neighbour has the problem's N and K.
    `support`: computes a config's Support, which a lookup needs only for the few configs it may serve. `around`: the
    neighbours, nearest first. `corrected`: whether trees corrected the times. `intervals`: relative half-width of the
    95% interval of each time measured at the problem itself. `disturbed`: whether ATen was timed there only on a
    busy machine, so that the times decide nothing against other configs.
    """

    rung: str
    estimates: Mapping[Config, Estimate]
    far: float
    aten_us: float
    verified: bool | None
    table: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    unsafe: frozenset[ConfigGroup] = frozenset()
    beside: bool = False
    support: Callable[[Config], Support] = lambda config: Support()
    around: Sequence[Timings] = ()
    corrected: bool = False
    intervals: Mapping[Config, float] = field(default_factory=dict)
    disturbed: bool = False

    @lazy
    def ratios(self) -> Mapping[Config, float]:
        """The expected times relative to ATen's."""
        return {config: math.exp(one.log) for config, one in self.estimates.items()}

    @lazy
    def gains(self) -> Mapping[Config, float]:
        """The expected gains over ATen of the configs that may be served."""
        return {config: one.gain for config, one in self.estimates.items() if one.full}

    def off(self, config: Config) -> float:
        """Return the relative uncertainty of a config's time: half its 95% interval if it was measured, else the
        standard deviation of its log. 0 for ATen, whose time is the unit."""
        if config == ATEN:
            return 0.0
        known = self.estimates.get(config)
        return self.intervals.get(config, 0.0 if known is None else known.spread)

    def regret(self, config: Config) -> float:
        """Return the expected slowdown against the best config: 0.03 is 3%."""
        return math.expm1(self.estimates[config].log - self._best)

    @lazy
    def _best(self) -> float:
        return min([one.log for one in self.estimates.values()])

    @lazy
    def _least(self) -> float:
        """A lower bound on the log time of the best config."""
        return min([log - LOSS_DEVIATIONS * spread for log, spread, _ in self.estimates.values()])

    @lazy
    def doubt(self) -> Mapping[Config, float]:
        """The relative uncertainty of each config's expected time."""
        return {c: math.expm1(2 * LOSS_DEVIATIONS * one.spread) + self.far for c, one in self.estimates.items()}

    def loss(self, config: Config) -> float:
        """Return the estimated loss of serving `config` instead of the best config. Nine out of ten stay within it."""
        log, spread, _ = self.estimates[config]
        return math.expm1(log + LOSS_DEVIATIONS * spread - self._least) + self.far

    def candidates(self, count: int) -> list[Config]:
        """Return the `count` configs other than ATen that are most likely to be the best."""
        found = [(log + CHOICE_DEVIATIONS * spread, config.text, config)
                 for config, (log, spread, full) in self.estimates.items() if full and config != ATEN]  # fmt: skip
        found.sort()  # No two share a text.
        return [config for _, _, config in found[:count]]


def measured(ask: Ask) -> Prediction | None:
    """Return the prediction for a problem that was itself measured; None if no table has a verdict on it, or no time of
    what ATen stands for in the compile."""
    found = verdict_of(ask)
    here = timings_of(ask, found[0], ask.problem) if found else None
    if here is None:
        return None
    banned = frozenset[Config]().union(*(failed(ask, table, ask.problem) for table in ask.tables)) - {ATEN}
    allowed = (c for c, one in here.pooled.items() if one.servable and c not in banned)
    logs = {config: here.pooled[config].code * STEP for config in allowed if ask.rejection(config) is None}
    form = default_mode.symbolic_form(ask.problem) if "m" in ask.symbolic else None
    if form is not None and (form not in here.pooled or not here.pooled[form].full or here.pooled[form].disturbed):
        return None
    aten = 0.0 if form is None else here.pooled[form].code * STEP
    estimates = {config: Estimate(0.0 if config == ATEN else log - aten, 0.0, True) for config, log in logs.items()}
    intervals = {config: here.pooled[config].spread for config in estimates}
    aten_us = here.aten_us * math.exp(aten)
    busy = ATEN in here.pooled and here.pooled[ATEN].disturbed
    return Prediction("exact", estimates, 0.0, aten_us, here.verified, here.table, intervals=intervals, disturbed=busy)


def estimated(ask: Ask) -> Prediction | None:
    """Return the prediction for a problem that was itself measured, of the configs that its search dropped after a
    short estimate, since others were faster; None without any. The caller benchmarks a config before it serves it:
    where the fastest may not be served, as `gemv` with a symbolic M, one of these is next."""
    found = verdict_of(ask)
    here = timings_of(ask, found[0], ask.problem) if found else None
    if here is None:
        return None
    banned = barred(ask)
    dropped = [
        (config, one) for config, one in here.pooled.items()
        if not one.full and not one.disturbed and config not in banned and ask.rejection(config) is None
    ]  # fmt: skip
    if not dropped:
        return None
    estimates = {config: Estimate(one.code * STEP, ESTIMATE_SPREAD, True) for config, one in dropped}
    return Prediction(
        "near", {ATEN: Estimate(0.0, 0.0, True)} | estimates, 0.0, here.aten_us, here.verified, here.table
    )


def remembered(ask: Ask, name: str, compute: Callable[[Ask], T], shared: bool = False) -> T:
    """Return `compute(ask)`, cached, since a compile looks up a GEMM several times. The result depends only on the
    arguments and the tables; writing to a table changes its `state`. Nothing is cached after a read error. `shared`:
    it depends on the policy only by what this excludes, so that lookups with other policies share it."""
    if not ask.tables:
        return compute(ask)
    part = "shared" if shared else "answers"
    known = ask.memo.get(part)
    if known is None:
        queries = _known.setdefault(ask.tables[0], {})
        if len(queries) >= _KEPT:
            queries.clear()
        known = ask.memo[part] = queries.setdefault((*ask.key(shared), fitted()), {})
    found = known.get(name)
    if found is not None:
        return cast("T", found)
    found = compute(ask)
    if not ask.faults:
        known[name] = found
    return found


def forget() -> None:
    """Clear all cached predictions."""
    _known.clear()
