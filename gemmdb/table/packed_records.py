"""Binary records, as stored in packed tables: a header, the verdicts, the failures, and groups with 8 bytes per time.

A record ends with a checksum over its bytes and the keys of its problem and device.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple
from zlib import crc32

from gemmdb.errors import InputError
from gemmdb.kernels.config import Config
from gemmdb.table.measurement import LEAST_US, MOST_US, Status
from gemmdb.table.numbering import Numbering
from gemmdb.table.record import MOST_CODE, MOST_RESIDENT, RESIDENT, Entry, Group, Record, Time
from gemmdb.table.verdict import Verdict

VERSION = 3
"""Version of records. Those of versions 1 and 2 had no verdicts; they were in tables of schema version 2."""
MEASURED = {"cold": 1, "hot": 2}
"""Bits of a record's second byte: whether it has a measured verdict for a state of the cache."""
_CRC_BYTES = 4
_HEAD, _GROUP = struct.Struct("<BBBBH"), struct.Struct("<BBH")
_VERDICT, _MICROSECONDS = struct.Struct("<HHHddd"), struct.Struct("<d")
_TIME, _FAILURE, _TIE = struct.Struct("<HhBBh"), struct.Struct("<HB"), struct.Struct("<H")
_NUMBER = struct.Struct("<H6x")  # The first value of _TIME
TIE_BYTES = _TIE.size
_HOT, _MODELLED, _ALL, _SHARED = 1, 2, 4, 8
_STATUSES = tuple(Status)
_FLAGS = RESIDENT * (MOST_RESIDENT + 1)


class Numbers(NamedTuple):
    """The functions from entries, classes, contexts (the keys of a protocol and a toolchain) and configs to their
    numbers in a table."""

    entry: Callable[[Entry], int]
    klass: Callable[[str], int]
    context: Callable[[tuple[int, int]], int]
    config: Callable[[Config], int]

    @classmethod
    def of(cls, numbering: Numbering) -> Numbers:
        """The numbers of a numbering."""
        classes = {name: place for place, name in enumerate(numbering.classes)}
        return cls(
            numbering.number(), classes.__getitem__, numbering.context_number(), numbering.config_number()
        )  # fmt: skip


class Stored(NamedTuple):
    """A verdict as a record holds it, with the number of its context, and those of its ties, 2 bytes each."""

    context: int
    ties: bytes
    ratio: float
    spread: float
    aten_us: float
    runs: int


def numbered(verdicts: Iterable[Verdict], numbers: Numbers) -> list[Stored]:
    """Return the verdicts with the numbers of a table."""
    return [
        Stored(
            numbers.context((one.protocol.key, one.toolchain.key)), tie_bytes(map(numbers.config, one.ties)),
            one.ratio, one.spread, one.aten_us, one.runs,
        )
        for one in verdicts
    ]  # fmt: skip


def tie_bytes(numbers: Iterable[int]) -> bytes:
    """Return the numbers of a tie set's configs as a record holds them. Raises InputError if one does not fit."""
    try:
        return b"".join(map(_TIE.pack, numbers))
    except struct.error as error:
        raise InputError(f"too many configs for a packed table ({error})") from error


def tie_numbers(ties: bytes) -> tuple[int, ...]:
    """Return the numbers of `tie_bytes`. Raises struct.error if the length is odd."""
    return tuple(number for (number,) in _TIE.iter_unpack(ties))


def measured(verdicts: Iterable[Verdict]) -> int:
    """Return the bits of MEASURED for the verdicts of a record."""
    found = 0
    for one in verdicts:
        found |= MEASURED[one.protocol.l2] * (one.protocol.clock != "model")
    return found


def pack(record: Record, numbers: Numbers, verdicts: Sequence[Stored] = (), states: int = 0) -> bytes:
    """Serialize a record and its `verdicts`, of which `states` are the `measured` bits. Its stamp is stored with the
    device. Raises InputError if it does not fit in a packed table."""
    given = [one.aten_us for one in verdicts]
    try:
        parts = [_HEAD.pack(VERSION, states, len(verdicts), len(record.groups), len(record.failed))]
        for stored in verdicts:
            context, ties, ratio, spread, aten_us, runs = stored
            parts.append(_VERDICT.pack(context, len(ties) // _TIE.size, runs, ratio, spread, aten_us) + ties)
        for config, status in record.failed:
            parts.append(_FAILURE.pack(numbers.entry(Entry(config)), _STATUSES.index(status)))
        for one in record.groups:
            shared = one.aten_us in given
            what = _HOT * (one.l2 == "hot") + _MODELLED * one.modelled + _ALL * (one.klass is None) + _SHARED * shared
            parts.append(_GROUP.pack(what, 0 if one.klass is None else numbers.klass(one.klass), len(one.times)))
            parts.append(bytes([given.index(one.aten_us)]) if shared else _MICROSECONDS.pack(one.aten_us))
            parts += [_TIME.pack(numbers.entry(t.entry), t.code, t.width, t.flags, t.expected) for t in one.times]
    except struct.error as error:
        raise InputError(f"too many times, ties or configs for a packed table ({error})") from error
    return b"".join(parts)


def sealed(data: bytes, problem: int, device: int) -> bytes:
    """Append to a packed record the CRC-32 of its bytes and of its problem and device keys."""
    return data + _checksum(data, problem, device)


def opened(data: Any, problem: Any, device: int) -> bytes:
    """Check and remove the checksum of a sealed record. Raises InputError, also for a key that is no integer."""
    if type(problem) is not int or not isinstance(data, bytes) or len(data) < _HEAD.size + _CRC_BYTES:
        raise InputError("a record is cut off")
    content, found = data[:-_CRC_BYTES], data[-_CRC_BYTES:]
    if found != _checksum(content, problem, device):
        raise InputError("a record is damaged: its checksum differs")
    return content


def stored(data: Any) -> list[Stored]:
    """Return the verdicts in a packed record. Raises InputError."""
    try:
        return _verdicts(data)[0]
    except struct.error as error:
        raise InputError(f"a record is malformed ({error})") from error


def counts(data: Any) -> tuple[int, int]:
    """Return the number of measured times (including failures) and of modelled times in a packed record. Times pooled
    over all classes are not counted again. Raises InputError."""
    try:
        failed, at = _failures(data)
        found = [len(failed) // _FAILURE.size, 0]
        for (what, _, count), _, begin in _heads(data, at):
            found[bool(what & _MODELLED)] += 0 if what & _ALL else count
            if begin > len(data):
                raise InputError("a record is cut off")
    except (struct.error, IndexError) as error:
        raise InputError(f"a record is malformed ({error})") from error
    return found[0], found[1]


def unpack(data: Any, entry: Callable[[int], Entry], classes: Sequence[str], stamp: int = 0) -> Record:
    """Deserialize a record from `pack`. `entry`: maps a number to its entry; `stamp`: that of its device. Raises
    InputError, one line, for anything that `pack` does not produce."""
    failed = failures(data, entry)
    try:
        end = _failures(data)[1]
        found = []
        for head, aten_us, begin in _heads(data, end):
            end = begin + head[2] * _TIME.size
            found.append(_group(head, aten_us, data[begin:end], entry, classes))
    except (struct.error, IndexError) as error:
        raise InputError(f"a record is malformed ({error})") from error
    if end != len(data):
        raise InputError("a record's length does not match its header")
    if len({(one.l2, one.modelled, one.klass) for one in found}) < len(found):
        raise InputError("a record has two groups of the same kind")
    return Record(tuple(found), failed, stamp)


def failures(data: Any, entry: Callable[[int], Entry]) -> tuple[tuple[Config, Status], ...]:
    """Return only `Record.failed`. Raises InputError."""
    try:
        return tuple((entry(n).config, _STATUSES[s]) for n, s in _FAILURE.iter_unpack(_failures(data)[0]))
    except (struct.error, IndexError) as error:
        raise InputError(f"a record is malformed ({error})") from error


def timed(data: Any, entry: Callable[[int], Entry]) -> Iterator[Entry]:
    """Yield only the entries with measured times, including repeats. Raises InputError."""
    try:
        for (what, _, count), _, begin in _heads(data, _failures(data)[1]):
            if not what & _MODELLED:
                for (number,) in _NUMBER.iter_unpack(data[begin : begin + count * _TIME.size]):
                    yield entry(number)
    except (struct.error, IndexError) as error:
        raise InputError(f"a record is malformed ({error})") from error


def _checksum(data: bytes, problem: int, device: int) -> bytes:
    return crc32(data, crc32(struct.pack("<qq", problem, device))).to_bytes(_CRC_BYTES, "little")


def _head(data: Any) -> tuple[int, int, int]:
    """Return the number of verdicts, of groups and of failures."""
    if not isinstance(data, bytes) or len(data) < _HEAD.size:
        raise InputError("a record is cut off")
    version, _, verdicts, groups, failures = _HEAD.unpack_from(data)
    if version != VERSION:
        raise InputError(f"a record has the unknown version {version}")
    return verdicts, groups, failures


def _verdicts(data: Any) -> tuple[list[Stored], int]:
    """Return the verdicts, and where they end."""
    found, at = [], _HEAD.size
    for _ in range(_head(data)[0]):
        context, count, runs, ratio, spread, aten_us = _VERDICT.unpack_from(data, at)
        begin, at = at + _VERDICT.size, at + _VERDICT.size + count * _TIE.size
        found.append(_stored((context, data[begin:at], ratio, spread, aten_us, runs)))
    return found, at


def _failures(data: Any) -> tuple[bytes, int]:
    """Return the bytes of the failures, and where they end."""
    begin = _verdicts(data)[1]
    end = begin + _FAILURE.size * _head(data)[2]
    return data[begin:end], end


def _heads(data: bytes, at: int) -> Iterator[tuple[tuple[int, int, int], float, int]]:
    """Yield the head of each group, ATen's microseconds, and where its times begin. The first group is at `at`."""
    given = [one.aten_us for one in _verdicts(data)[0]]
    for _ in range(_head(data)[1]):
        head = _GROUP.unpack_from(data, at)
        at += _GROUP.size
        if head[0] & _SHARED:
            aten_us, at = given[data[at]], at + 1
        else:
            (aten_us,), at = _MICROSECONDS.unpack_from(data, at), at + _MICROSECONDS.size
        yield head, aten_us, at
        at += head[2] * _TIME.size


_time: Callable[[Iterable[Any]], Time] = partial(tuple.__new__, Time)
_stored: Callable[[Iterable[Any]], Stored] = partial(tuple.__new__, Stored)
"""Create a Time from its five values and a Stored from its six, three times faster than these."""


def _group(
    head: tuple[int, int, int], aten_us: float, data: bytes, entry: Callable[[int], Entry], classes: Sequence[str]
) -> Group:
    what, klass, count = head
    if not count or len(data) != count * _TIME.size or what > _HOT + _MODELLED + _ALL + _SHARED:
        raise InputError("a record is cut off")
    numbers, codes, widths, flags, expected = zip(*_TIME.iter_unpack(data), strict=True)
    found = list(map(entry, numbers))
    times = tuple(map(_time, zip(found, codes, widths, flags, expected)))  # noqa: B905 - all are of one length
    aten = [code for one, code in zip(found, codes, strict=True) if one.aten]
    good = len({one.key for one in found}) == count and max(flags) < _FLAGS and min(codes) >= -MOST_CODE
    good = good and all(one.split for one, flag in zip(found, flags, strict=True) if flag >= RESIDENT)
    if not good or not (LEAST_US <= aten_us <= MOST_US and aten[0] == 0 if aten else aten_us == 0):
        raise InputError("a record holds impossible times")
    name = None if what & _ALL else classes[klass]
    return Group("hot" if what & _HOT else "cold", bool(what & _MODELLED), name, aten_us, times)
