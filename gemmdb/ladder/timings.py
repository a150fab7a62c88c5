"""Timings: what one table holds about one problem, in the form that rung `near` uses. They are read once and cached."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple
from weakref import WeakKeyDictionary

from gemmdb.cost.roofline import roofline_us
from gemmdb.cost.transfer import ConfigGroup, Scale, group_of
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.canonical import lazy
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.ladder.ask import Ask
from gemmdb.ladder.policy_filter import verified
from gemmdb.table.measurement import Measurement
from gemmdb.table.reader import Table
from gemmdb.table.verdict import Pooled, pool_slow, unsafe

_KEPT = 4096

_Key = tuple[int, int, str, object]
_kept: WeakKeyDictionary[Table, tuple[str, dict[_Key, Timings | None]]] = WeakKeyDictionary()


class Timed(NamedTuple):
    """A group of configs at one problem, by its fastest member. `excess`: the logarithm of its time over the time that
    `Scale` expects, minus the smallest such logarithm of the problem. `behind`: the logarithm of its time over the best
    time. `full`: measured in full."""

    excess: float
    behind: float
    full: bool


@dataclass(frozen=True)
class Timings:
    """What one table holds about one problem: each config's pooled time relative to ATen's `aten_us` microseconds.
    `banned`: the configs that were wrong or crashed. `verified`: whether the rows were measured under the running
    toolchain class with the current kernel sources; None if unknown."""

    problem: Problem
    device: Device
    table: str
    pooled: Mapping[Config, Pooled]
    banned: frozenset[Config]
    aten_us: float
    verified: bool | None

    def knows(self, config: Config) -> bool:
        """Whether `config` has a time here that is steady enough to predict from."""
        return config in self.pooled and self.pooled[config].steady

    @lazy
    def level(self) -> float:
        """The smallest logarithm of a time over the time that `Scale` expects."""
        return min(value for value, *_ in self._logs.values())

    @lazy
    def groups(self) -> Mapping[ConfigGroup, Timed]:
        """Every group that has a steady time."""
        return {key: Timed(value - self.level, behind, full) for key, (value, behind, full) in self._logs.items()}

    @lazy
    def aten(self) -> Timed:
        """The group of ATen, which has a steady time if `knows(ATEN)`."""
        return self.groups[group_of(ATEN, self.problem, self.device)]

    @lazy
    def roof_us(self) -> float:
        """The roofline of the problem, in microseconds."""
        return roofline_us(self.problem, self.device)

    @lazy
    def likes(self) -> Mapping[object, float]:
        """The smallest excess among groups of the same tile."""
        least: dict[object, float] = {}
        for key, one in self.groups.items():
            least[key.like] = min(one.excess, least.get(key.like, one.excess))
        return least

    @lazy
    def unsafe(self) -> frozenset[ConfigGroup]:
        """The groups of the configs that were wrong or crashed here."""
        return frozenset(group_of(config, self.problem, self.device) for config in self.banned)

    @lazy
    def _logs(self) -> Mapping[ConfigGroup, tuple[float, float, bool]]:
        scale = Scale.of(self.problem, self.device)
        steady = {config: one for config, one in self.pooled.items() if one.steady}
        best = min(one.ratio for one in steady.values())
        logs: dict[ConfigGroup, tuple[float, float, bool]] = {}
        for config, one in steady.items():
            key = group_of(config, self.problem, self.device)
            value, behind = math.log(one.ratio * self.aten_us / scale.us(config)), math.log(one.ratio / best)
            least, nearest, full = logs.get(key, (value, behind, False))
            logs[key] = min(value, least), min(behind, nearest), one.servable or full
        return logs


def timings_of(ask: Ask, table: Table, problem: Problem) -> Timings | None:
    """The Timings of `problem` in `table`: rows of the running toolchain class if there are any, else of all. None
    without a row of ATen."""
    state = ask.read(Table.state, table)
    if state is None:
        return None
    before, known = _kept.get(table, ("", {}))
    if before != state or len(known) > _KEPT:
        known = {}
        _kept[table] = state, known
    key = (problem.key, ask.device.key, ask.query.l2, ask.toolchain)
    if key not in known:
        known[key] = _read(ask, table, problem)
    return known[key]


def _read(ask: Ask, table: Table, problem: Problem) -> Timings | None:
    found = ask.read(Table.rows, table, problem, ask.device) or []
    banned = unsafe(found)
    rows = [row for row in found if row.protocol.l2 == ask.query.l2 and row.protocol.clock != "model"]
    classes = (None,) if ask.klass is None else (ask.klass, None)
    for klass in classes:
        pooled = _pooled([row for row in rows if klass is None or row.toolchain.klass == klass], banned)
        if ATEN in pooled:
            aten_us = median(row.times.median_us for row in pooled[ATEN].rows if row.times)
            holds = None if ask.klass is None else all(_holds(ask, one) for one in pooled.values())
            return Timings(problem, ask.device, str(table.path), pooled, banned, aten_us, holds)
    return None


def _pooled(rows: Collection[Measurement], banned: frozenset[Config]) -> dict[Config, Pooled]:
    return {one.config: one for one in pool_slow(rows, banned)}


def _holds(ask: Ask, one: Pooled) -> bool:
    return any(verified(ask, one.config, row.toolchain) for row in one.rows)
