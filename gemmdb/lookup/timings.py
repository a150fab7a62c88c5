"""Timings: one table's times for one problem, as used by predictions. They are read once and cached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple
from weakref import WeakKeyDictionary

from gemmdb.cost.roofline import roofline_us
from gemmdb.cost.transfer import ATEN_GROUP, ConfigGroup, Like, group_of
from gemmdb.kernels.config import Config
from gemmdb.key.canonical import lazy
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.evidence import possible_times, verified
from gemmdb.lookup.expected import Codes, codes_of
from gemmdb.table.reader import Table
from gemmdb.table.record import STEP, Entry, Time

_KEPT = 4096
"""Maximum number of cached Timings per table, and of problems with cached failures."""


class _Kept(NamedTuple):
    """Cached data of a table in one `state`: Timings by device, L2 state and toolchain, then by problem; and by device,
    then by problem, the failed configs and whether few kernels were timed."""

    state: str
    timings: dict[tuple[int, str, object], dict[int, Timings | None]]
    failed: dict[int, dict[int, frozenset[Config]]]
    few: dict[int, dict[int, bool]]


class _Here(NamedTuple):
    """The part of _Kept that a lookup needs."""

    timings: dict[int, Timings | None]
    failed: dict[int, frozenset[Config]]
    few: dict[int, bool]


_kept: WeakKeyDictionary[Table, _Kept] = WeakKeyDictionary()


@dataclass(frozen=True)
class Timings:
    """One table's times for one problem: each config's pooled time relative to ATen's `aten_us` microseconds. `banned`:
    the configs that were wrong or crashed. `verified`: whether the rows were measured under the running toolchain class
    with the current kernel sources; None if unknown. `stamp`: the record's stamp."""

    problem: Problem
    device: Device
    table: str
    times: tuple[Time, ...]
    banned: frozenset[Config]
    aten_us: float
    verified: bool | None
    stamp: int = 0

    @lazy
    def pooled(self) -> Mapping[Config, Time]:
        """The times by config, fastest first."""
        return {one.entry.config: one for one in self.times}

    @lazy
    def steady_aten(self) -> bool:
        """Whether ATen has a time that is steady enough to predict from."""
        return any(one.entry.aten and one.steady for one in self.times)

    @lazy
    def least(self) -> int:
        """The smallest log of measured time over `Scale`'s expected time, in STEPs."""
        return int(min(map(itemgetter(0), self.codes.values())))

    @lazy
    def fastest(self) -> int:
        """The smallest log time, in STEPs."""
        return int(min(map(itemgetter(1), self.codes.values())))

    @lazy
    def behind(self) -> Sequence[tuple[int, ConfigGroup]]:
        """Each group's log distance behind the best, in STEPs, closest first."""
        return sorted([(code - self.fastest, key) for key, (_, code, _) in self.codes.items()], key=itemgetter(0))

    @lazy
    def aten(self) -> tuple[float, float]:
        """For ATen, which needs `steady_aten`: the log of its time over `Scale`'s expected time, minus `least`; and the
        log of its time over the best time."""
        value, code, _ = self.codes[ATEN_GROUP]
        return (value - self.least) * STEP, (code - self.fastest) * STEP

    @lazy
    def roof_us(self) -> float:
        """The problem's roofline, in microseconds."""
        return roofline_us(self.problem, self.device)

    @lazy
    def likes(self) -> Mapping[Like, int]:
        """The smallest log of measured over expected time among groups with the same tile, in STEPs."""
        least: dict[Like, int] = {}
        for key, (value, _, _) in self.codes.items():
            like = key.like
            if like not in least or value < least[like]:
                least[like] = value
        return least

    @lazy
    def unsafe(self) -> frozenset[ConfigGroup]:
        """The groups with configs that were wrong or crashed here."""
        return frozenset(group_of(config, self.problem, self.device) for config in self.banned)

    @lazy
    def codes(self) -> Mapping[ConfigGroup, Codes]:
        """The Codes of each group with a steady time."""
        return codes_of(self.times, self.problem, self.device, self.aten_us, self.stamp)


def timings_of(ask: Ask, table: Table, problem: Problem, few: bool = True) -> Timings | None:
    """Return the Timings of `problem` in `table`: rows of the running toolchain class if there are any, else all rows.
    None without a possible ATen time. `few`: accept a problem with few of our kernels beside a library's algorithms."""
    here = _here(ask, table)
    if here is None:
        return None
    timings, key = here.timings, problem.key
    if not few and (here.few[key] if key in here.few else _few_kernels(ask, here, table, problem)):
        return None
    if key in timings:
        return timings[key]
    found = _read(ask, table, problem)
    if found is not None or not ask.faults:  # A failed read may succeed later.
        timings[key] = found
    return found


def failed(ask: Ask, table: Table, problem: Problem) -> frozenset[Config]:
    """Return the configs that were wrong or crashed on `problem` in `table`."""
    here = _here(ask, table)
    if here is None:
        return frozenset()
    known, key = here.failed, problem.key
    if key not in known:
        one = here.timings.get(key)
        read = one.banned if one is not None else ask.read(Table.barred, table, problem, ask.device)
        if read is None:  # The read may succeed later.
            return frozenset()
        known[key] = read
    return known[key]


def _few_kernels(ask: Ask, here: _Here, table: Table, problem: Problem) -> bool:
    found = ask.read(Table.few_kernels, table, problem, ask.device)
    if found is None:  # The read may succeed later.
        return False
    here.few[problem.key] = found
    return found


def _here(ask: Ask, table: Table) -> _Here | None:
    """Return the cached data of a table for the query; None if the table cannot be read."""
    here: _Here | None = ask.memo.get(table)
    if here is None:
        state = ask.read(Table.state, table)
        if state is None:
            return None
        kept = _kept.get(table)
        full = kept and any(sum(map(len, part.values())) > _KEPT for part in (kept.timings, kept.failed, kept.few))
        if kept is None or kept.state != state or full:
            kept = _kept[table] = _Kept(state, {}, {}, {})
        key = ask.device.key
        timings = kept.timings.setdefault((key, ask.query.l2, ask.toolchain), {})
        here = ask.memo[table] = _Here(timings, kept.failed.setdefault(key, {}), kept.few.setdefault(key, {}))
    return here


def _read(ask: Ask, table: Table, problem: Problem) -> Timings | None:
    found = ask.read(Table.record, table, problem, ask.device)
    if found is None:
        return None
    # Use the running toolchain class if ATen was timed under it, else all classes.
    groups = (found.find(ask.query.l2, klass) for klass in ((None,) if ask.klass is None else (ask.klass, None)))
    group = next((group for group in groups if group and group.aten_us), None)
    if group is None:
        return None
    times = possible_times(group, problem, ask.device)
    if not times:
        return None
    running = ask.toolchain
    holds = None if running is None else all(_holds(ask, running.text, one.entry) for one in times)
    return Timings(problem, ask.device, str(table.path), times, found.banned, group.aten_us, holds, found.stamp)


def _holds(ask: Ask, running: str, entry: Entry) -> bool:
    """Return whether a row of the entry is valid under the toolchain with the text `running`. Hashing a text is faster
    than hashing a toolchain."""
    known = entry.memo.get(running)
    if known is None:
        known = entry.memo[running] = any(verified(ask, entry.config, one) for one in entry.toolchains)
    return bool(known)
