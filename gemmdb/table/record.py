"""Record: all times of one problem on one device, pooled over runs. Rung `near` predicts from records.

A record built from rows has exactly the content of its packed form (`packed_records`), so a packed table gives the same
results as the rows it was made from.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from statistics import median
from typing import Any, NamedTuple

from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.canonical import lazy
from gemmdb.key.toolchain import Toolchain
from gemmdb.table.measurement import NOISY, UNSAFE, Measurement, Status
from gemmdb.table.verdict import Pooled, pool, unsafe

STEP = 2.0**-12  # Log times are rounded to multiples of this: 0.024%, far below the noise between two runs
MOST_CODE = 2**15 - 1
"""The largest multiple: a factor of 2,981 slower or faster than ATen. Larger values are clamped."""
UNKNOWN = -(2**15)  # `Time.expected` without an expectation
FULL, EMITTED, DISTURBED, RESIDENT = 1, 2, 4, 8
"""`Time.flags`: measured in full by a run; measured on compiler-emitted code; always measured on a busy machine.
RESIDENT is the lowest of three bits."""
MOST_RESIDENT = 7
STEADIEST, _PER_DOUBLING = 200, 16
"""A spread is NOISY times 2 ** ((width - STEADIEST) / _PER_DOUBLING), rounded up so that encoding does not change what
counts as steady."""
_WIDEST = 255
FEW_KERNELS = 8
"""With fewer of our kernels beside a library's algorithms, a problem was measured for these. A build of effort `lean`
times 4 kernels, the algorithm search of a compile none; the other builds time 16 or more."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A config with the toolchains that measured it, ordered by text. The times of a table share entries. `memo`: cache
    for values that callers derive from it. `key`: the config's key. `aten`: whether the config is ATen. `library`:
    whether it is a library's algorithm. `split`: whether it splits K. `served`: whether a compile may serve it."""

    config: Config
    toolchains: tuple[Toolchain, ...] = ()
    memo: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    key: int = field(init=False, compare=False, repr=False)
    aten: bool = field(init=False, compare=False, repr=False)
    library: bool = field(init=False, compare=False, repr=False)
    split: bool = field(init=False, compare=False, repr=False)
    served: bool = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.config.key)
        object.__setattr__(self, "aten", self.config == ATEN)
        object.__setattr__(self, "library", self.config.spec.library)
        object.__setattr__(self, "split", int(self.config.values.get("split_k", 1)) > 1)
        object.__setattr__(self, "served", not self.config.spec.measured_only)


class Time(NamedTuple):
    """One config's pooled time. `code`: the log of its ratio to ATen's, in STEPs. `width`: its encoded spread.
    `expected`: the log of the cost model's time relative to ATen's measured time, in STEPs, or UNKNOWN; with an
    expectation, `flags` also contain the number of programs per multiprocessor that its split gives (see
    `resident`)."""

    entry: Entry
    code: int
    width: int
    flags: int
    expected: int = UNKNOWN

    @property
    def config(self) -> Config:
        """The config."""
        return self.entry.config

    @property
    def ratio(self) -> float:
        """The time relative to ATen's."""
        return math.exp(self.code * STEP)

    @property
    def spread(self) -> float:
        """Half the width of its 95% interval, relative."""
        return NOISY * 2.0 ** ((self.width - STEADIEST) / _PER_DOUBLING) if self.width else 0.0

    @property
    def full(self) -> bool:
        """Whether a run measured it in full."""
        return bool(self.flags & FULL)

    @property
    def emitted(self) -> bool:
        """Whether compiler-emitted code was timed."""
        return bool(self.flags & EMITTED)

    @property
    def disturbed(self) -> bool:
        """Whether the machine was busy in every measurement."""
        return bool(self.flags & DISTURBED)

    @property
    def steady(self) -> bool:
        """Whether it is steady enough to predict from."""
        return self.width <= STEADIEST and not self.flags & DISTURBED

    @property
    def servable(self) -> bool:
        """Whether a run measured it in full, on a quiet machine, and a compile may serve it. ATen needs no evidence."""
        quiet = not self.flags & DISTURBED or self.entry.aten
        return bool(self.flags & FULL) and quiet and self.entry.served

    @property
    def resident(self) -> int:
        """0 if a split of K belongs to the config, else one more than log2 of the programs per multiprocessor."""
        return self.flags // RESIDENT


@dataclass(frozen=True, slots=True)
class Group:
    """The times for one L2 state and one toolchain class (None: pooled over several classes), fastest first.
    `modelled`: whether the cost model computed them. `aten_us`: ATen's time in microseconds; 0 without one."""

    l2: str
    modelled: bool
    klass: str | None
    aten_us: float
    times: tuple[Time, ...]


@dataclass(frozen=True)
class Record:
    """One table's data for one problem on one device. `failed`: configs with each of their failure statuses. `stamp`:
    hash of the inputs of `Time.expected`, 0 without expectations."""

    groups: tuple[Group, ...]
    failed: tuple[tuple[Config, Status], ...]
    stamp: int = 0

    @lazy
    def banned(self) -> frozenset[Config]:
        """The configs that were wrong or crashed."""
        return frozenset(config for config, status in self.failed if status in UNSAFE)

    @lazy
    def under_load(self) -> frozenset[Config]:
        """The configs that were timed only while other programs kept the machine busy. Such times are no evidence
        against ATen."""
        marks: dict[Config, bool] = {}
        for time in self.measured:
            marks[time.config] = marks.get(time.config, True) and time.disturbed
        return frozenset(config for config, marked in marks.items() if marked)

    @property
    def measured(self) -> list[Time]:
        """The measured times of all groups."""
        return [time for group in self.groups if not group.modelled for time in group.times]

    def find(self, l2: str, klass: str | None, modelled: bool = False) -> Group | None:
        """Return the group of a toolchain class; `klass` None means all classes pooled."""
        found = [one for one in self.groups if (one.l2, one.modelled) == (l2, modelled)]
        if klass is None and len(found) == 1:
            return found[0]
        return next((one for one in found if one.klass == klass), None)


def record(rows: Iterable[Measurement]) -> Record:
    """Build the record from all rows of one problem on one device. Times against another reference than today's are
    left out."""
    rows = list(rows)
    banned = unsafe(rows)
    timed = sorted((row for row in rows if row.counts), key=_kind)
    groups = [one for _, found in groupby(timed, key=_kind) for one in _groups(list(found), banned)]
    failed = {(row.config, row.status) for row in rows if row.times is None}
    return Record(tuple(groups), tuple(sorted(failed, key=lambda pair: (pair[0].text, pair[1].value))))


def few_kernels(timed: Iterable[Entry]) -> bool:
    """Return whether few of our kernels are among the entries that were timed, beside a library's algorithms. Reads no
    further than it must."""
    library, ours = False, set[int]()
    for one in timed:
        if one.library:
            library = True
        elif not one.aten:
            ours.add(one.key)
            if len(ours) == FEW_KERNELS:
                return False
    return library


def coded(log: float) -> int:
    """Return a logarithm in STEPs, clamped to MOST_CODE."""
    return max(-MOST_CODE, min(MOST_CODE, round(log / STEP)))


def _kind(row: Measurement) -> tuple[str, bool]:
    return row.protocol.l2, row.protocol.clock == "model"


def _groups(rows: Sequence[Measurement], banned: Collection[Config]) -> Iterable[Group]:
    (l2, modelled), classes = _kind(rows[0]), sorted({row.toolchain.klass for row in rows})
    for klass in (*classes, None) if len(classes) > 1 else classes:
        pooled = pool((row for row in rows if klass is None or row.toolchain.klass == klass), banned, slow=True)
        if pooled:
            aten = next((one.rows for one in pooled if one.config == ATEN), ())
            aten_us = median(row.times.median_us for row in aten if row.times) if aten else 0.0
            yield Group(l2, modelled, klass, aten_us, tuple(map(_time, pooled)))


def _time(one: Pooled) -> Time:
    full = any(row.status is Status.OK for row in one.rows)
    flags = FULL * full + EMITTED * one.emitted + DISTURBED * one.disturbed
    toolchains = sorted({row.toolchain for row in one.rows}, key=lambda toolchain: toolchain.text)
    return Time(Entry(one.config, tuple(toolchains)), coded(math.log(one.ratio)), _width(one.spread), flags)


def _width(spread: float) -> int:
    if spread <= 0:
        return 0
    return max(1, min(_WIDEST, math.ceil(STEADIEST + _PER_DOUBLING * math.log2(spread / NOISY))))
