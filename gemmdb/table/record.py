"""Record: all times of one problem on one device, pooled over runs. Rung `near` predicts from records.

A record can be packed into bytes: a header, then 8 bytes per time. A record that is made of rows holds exactly what its
packed form holds, so a packed table and the rows that it was made of give the same answers.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, groupby
from statistics import median
from typing import Any, NamedTuple

from gemmdb.errors import InputError
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.canonical import lazy
from gemmdb.key.toolchain import Toolchain
from gemmdb.table import checksum
from gemmdb.table.measurement import LEAST_US, MOST_US, NOISY, UNSAFE, Measurement, Status
from gemmdb.table.verdict import Pooled, pool_slow, unsafe

STEP = 2.0**-12
"""Logarithms of times are rounded to multiples of this: 0.024%, far less than what two runs differ by."""
MOST_CODE = 2**15 - 1
"""The largest multiple: times up to 2,981 times as long, or as short, as ATen's. Others are stored as these."""
UNKNOWN = -(2**15)
"""`Time.expected` where nothing is expected."""
FULL, EMITTED, DISTURBED, RESIDENT = 1, 2, 4, 8
"""`Time.flags`: a run measured it in full; as the code that the compiler emits; always on a busy machine. RESIDENT is
the lowest of three bits."""
MOST_RESIDENT = 7
_FLAGS = RESIDENT * (MOST_RESIDENT + 1)
STEADIEST, _PER_DOUBLING = 200, 16
"""A spread is NOISY times 2 ** ((width - STEADIEST) / _PER_DOUBLING), rounded up: what was steady stays steady."""
_WIDEST = 255

VERSION, SEALED = 1, 2
"""Versions of packed records. A sealed one ends with a checksum; those of older tables have none."""
MOST_ENTRIES = 1 << 16
"""The most entries of a table's numbering."""
_HEAD, _GROUP = struct.Struct("<BBHI"), struct.Struct("<BBHd")
_TIME, _FAILURE = struct.Struct("<HhBBh"), struct.Struct("<HB")
_HOT, _MODELLED, _ALL = 1, 2, 4
_STATUSES = tuple(Status)


@dataclass(frozen=True, slots=True)
class Entry:
    """A config with the toolchains that measured it, by their texts. The times of a table share entries. `memo` is for
    what a caller computes of it. `key`: that of the config. `aten`: whether the config is ATen. `split`: whether it
    splits K."""

    config: Config
    toolchains: tuple[Toolchain, ...] = ()
    memo: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    key: int = field(init=False, compare=False, repr=False)
    aten: bool = field(init=False, compare=False, repr=False)
    split: bool = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.config.key)
        object.__setattr__(self, "aten", self.config == ATEN)
        object.__setattr__(self, "split", int(self.config.values.get("split_k", 1)) > 1)


class Time(NamedTuple):
    """One config's pooled time. `code`: the logarithm of its ratio to ATen's, in STEPs. `width`: its spread, coded.
    `expected`: the logarithm of what the cost model expects relative to ATen's measured time, in STEPs, or UNKNOWN;
    then `flags` also hold how many programs per multiprocessor its split gives (see `resident`)."""

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
        """Whether it is the time of the code that the compiler emits."""
        return bool(self.flags & EMITTED)

    @property
    def disturbed(self) -> bool:
        """Whether the machine was busy whenever it was timed."""
        return bool(self.flags & DISTURBED)

    @property
    def steady(self) -> bool:
        """Whether it is good enough to predict from."""
        return self.width <= STEADIEST and not self.flags & DISTURBED

    @property
    def servable(self) -> bool:
        """Whether a run measured it in full, on a quiet machine. ATen needs no evidence."""
        return bool(self.flags & FULL) and (not self.flags & DISTURBED or self.entry.aten)

    @property
    def resident(self) -> int:
        """0 if a split of K belongs to the config, else one more than log2 of the programs per multiprocessor."""
        return self.flags // RESIDENT


@dataclass(frozen=True, slots=True)
class Group:
    """The times under one state of the cache and one toolchain class (None: over all classes, where there are several),
    fastest first. `modelled`: whether they were computed by the cost model. `aten_us`: microseconds of ATen; 0 without
    a time of ATen."""

    l2: str
    modelled: bool
    klass: str | None
    aten_us: float
    times: tuple[Time, ...]


@dataclass(frozen=True)
class Record:
    """What one table knows of one problem on one device. `failed`: configs with each status that they failed with.
    `stamp`: what `Time.expected` was computed with, 0 for nothing."""

    groups: tuple[Group, ...]
    failed: tuple[tuple[Config, Status], ...]
    stamp: int = 0

    @lazy
    def banned(self) -> frozenset[Config]:
        """The configs that were wrong or crashed."""
        return frozenset(config for config, status in self.failed if status in UNSAFE)

    @lazy
    def under_load(self) -> frozenset[Config]:
        """The configs that were timed while other programs kept the machine busy, and at no other time. Such times
        decide nothing against ATen."""
        marks: dict[Config, bool] = {}
        for time in self.measured:
            marks[time.config] = marks.get(time.config, True) and time.disturbed
        return frozenset(config for config, marked in marks.items() if marked)

    @property
    def measured(self) -> list[Time]:
        """The times that were measured, of all groups."""
        return [time for group in self.groups if not group.modelled for time in group.times]

    def find(self, l2: str, klass: str | None, modelled: bool = False) -> Group | None:
        """The group of a toolchain class; None as class stands for all of them together."""
        found = [one for one in self.groups if (one.l2, one.modelled) == (l2, modelled)]
        if klass is None and len(found) == 1:
            return found[0]
        return next((one for one in found if one.klass == klass), None)


def record(rows: Iterable[Measurement]) -> Record:
    """The record of all rows of one problem on one device. Times between other kernels are left out: they are for
    verdicts alone, and nothing is predicted from them."""
    rows = list(rows)
    banned = unsafe(rows)
    timed = sorted((row for row in rows if row.times and row.protocol.l2 != "chain"), key=_kind)
    groups = [one for _, found in groupby(timed, key=_kind) for one in _groups(list(found), banned)]
    failed = {(row.config, row.status) for row in rows if row.times is None}
    return Record(tuple(groups), tuple(sorted(failed, key=lambda pair: (pair[0].text, pair[1].value))))


def coded(log: float) -> int:
    """A logarithm in STEPs, within MOST_CODE."""
    return max(-MOST_CODE, min(MOST_CODE, round(log / STEP)))


def _kind(row: Measurement) -> tuple[str, bool]:
    return row.protocol.l2, row.protocol.clock == "model"


def _groups(rows: Sequence[Measurement], banned: Collection[Config]) -> Iterable[Group]:
    (l2, modelled), classes = _kind(rows[0]), sorted({row.toolchain.klass for row in rows})
    for klass in (*classes, None) if len(classes) > 1 else classes:
        pooled = pool_slow((row for row in rows if klass is None or row.toolchain.klass == klass), banned)
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


def pack(record: Record, number: Callable[[Entry], int], klass: Callable[[str], int]) -> bytes:
    """A record as bytes. `number`: the number of an entry in the table's numbering; `klass`: that of a class. Raises
    InputError if it holds more than a packed table has room for."""
    try:
        parts = [_HEAD.pack(VERSION, len(record.groups), len(record.failed), record.stamp)]
        for config, status in record.failed:
            parts.append(_FAILURE.pack(number(Entry(config)), _STATUSES.index(status)))
        for one in record.groups:
            what = _HOT * (one.l2 == "hot") + _MODELLED * one.modelled + _ALL * (one.klass is None)
            parts.append(_GROUP.pack(what, 0 if one.klass is None else klass(one.klass), len(one.times), one.aten_us))
            parts += [_TIME.pack(number(t.entry), t.code, t.width, t.flags, t.expected) for t in one.times]
    except struct.error as error:
        raise InputError(f"a packed table has no room for so many times or configs ({error})") from error
    return b"".join(parts)


def sealed(data: bytes, problem: int, device: int) -> bytes:
    """What `pack` made, with the checksum that says that it belongs to the keys of a problem and a device."""
    data = bytes([SEALED]) + data[1:]
    return data + checksum.of_record(problem, device, data)


def opened(data: Any, problem: int, device: int) -> Any:
    """What `pack` made, or any other value; the checksum of a sealed record is checked. Raises InputError."""
    if not isinstance(data, bytes) or data[:1] != bytes([SEALED]):
        return data
    whole, data = data, data[: -checksum.BYTES]
    if whole[len(data) :] != checksum.of_record(problem, device, data):
        raise InputError("a record is damaged: its checksum differs")
    return bytes([VERSION]) + data[1:]


def counts(data: Any) -> tuple[int, int]:
    """How many times a packed record holds: measured ones, failures included, and modelled ones. Times over all classes
    are not counted again. Raises InputError."""
    groups, failures, _, at = _head(data, (VERSION, SEALED))
    found = [failures, 0]
    try:
        for _ in range(groups):
            what, _, count, _ = _GROUP.unpack_from(data, at)
            found[bool(what & _MODELLED)] += 0 if what & _ALL else count
            at += _GROUP.size + count * _TIME.size
    except struct.error as error:
        raise InputError(f"a record is malformed ({error})") from error
    return found[0], found[1]


def unpack(data: Any, entry: Callable[[int], Entry], classes: Sequence[str]) -> Record:
    """The record that `pack` made. `entry`: the entry of a number. Raises InputError, one line, for anything that
    `pack` does not make."""
    groups, _, stamp, end = _head(data)
    failed = failures(data, entry)
    try:
        found = []
        for _ in range(groups):
            head = _GROUP.unpack_from(data, end)
            begin, end = end + _GROUP.size, end + _GROUP.size + head[2] * _TIME.size
            found.append(_group(head, data[begin:end], entry, classes))
    except (struct.error, IndexError) as error:
        raise InputError(f"a record is malformed ({error})") from error
    if end != len(data):
        raise InputError("a record is longer or shorter than it says")
    if len({(one.l2, one.modelled, one.klass) for one in found}) < groups:
        raise InputError("a record holds two groups of one kind")
    return Record(tuple(found), failed, stamp)


def failures(data: Any, entry: Callable[[int], Entry]) -> tuple[tuple[Config, Status], ...]:
    """`Record.failed` alone. Raises InputError."""
    *_, end = _head(data)
    try:
        return tuple((entry(n).config, _STATUSES[s]) for n, s in _FAILURE.iter_unpack(data[_HEAD.size : end]))
    except (struct.error, IndexError) as error:
        raise InputError(f"a record is malformed ({error})") from error


def _head(data: Any, versions: Sequence[int] = (VERSION,)) -> tuple[int, int, int, int]:
    """The numbers of groups and of failures, the stamp, and where the groups begin."""
    if not isinstance(data, bytes) or len(data) < _HEAD.size:
        raise InputError("a record is cut off")
    version, groups, failures, stamp = _HEAD.unpack_from(data)
    if version not in versions:
        raise InputError(f"a record has the unknown version {version}")
    return groups, failures, stamp, _HEAD.size + failures * _FAILURE.size


_made: Callable[[Iterable[Any]], Time] = partial(tuple.__new__, Time)
"""A Time of its five values; `Time` itself takes three times as long."""


def _group(
    head: tuple[int, int, int, float], data: bytes, entry: Callable[[int], Entry], classes: Sequence[str]
) -> Group:
    what, klass, count, aten_us = head
    if not count or len(data) != count * _TIME.size or what > _HOT + _MODELLED + _ALL:
        raise InputError("a record is cut off")
    numbers, codes, widths, flags, expected = zip(*_TIME.iter_unpack(data), strict=True)
    found = list(map(entry, numbers))
    times = tuple(map(_made, zip(found, codes, widths, flags, expected)))  # noqa: B905 - all are of one length
    aten = [code for one, code in zip(found, codes, strict=True) if one.aten]
    good = len({one.key for one in found}) == count and max(flags) < _FLAGS and min(codes) >= -MOST_CODE
    good = good and all(one.split for one, flag in zip(found, flags, strict=True) if flag >= RESIDENT)
    if not good or not (LEAST_US <= aten_us <= MOST_US and aten[0] == 0 if aten else aten_us == 0):
        raise InputError("a record holds impossible times")
    name = None if what & _ALL else classes[klass]
    return Group("hot" if what & _HOT else "cold", bool(what & _MODELLED), name, aten_us, times)


def entries(record: Record) -> Iterable[Entry]:
    """Every entry that `pack` asks the number of, repeats included."""
    return chain((Entry(config) for config, _ in record.failed), (t.entry for one in record.groups for t in one.times))
