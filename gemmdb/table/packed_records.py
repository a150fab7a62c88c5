"""Binary records, as stored in packed tables: a header, the failures, and groups with 8 bytes per time."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any
from zlib import crc32

from gemmdb.errors import InputError
from gemmdb.kernels.config import Config
from gemmdb.table.measurement import LEAST_US, MOST_US, Status
from gemmdb.table.record import MOST_CODE, MOST_RESIDENT, RESIDENT, Entry, Group, Record, Time

VERSION, SEALED = 1, 2
"""Versions of packed records. A sealed record ends with a checksum; older tables have none."""
_CRC_BYTES = 4
_HEAD, _GROUP = struct.Struct("<BBHI"), struct.Struct("<BBHd")
_TIME, _FAILURE = struct.Struct("<HhBBh"), struct.Struct("<HB")
_HOT, _MODELLED, _ALL = 1, 2, 4
_STATUSES = tuple(Status)
_FLAGS = RESIDENT * (MOST_RESIDENT + 1)


def pack(record: Record, number: Callable[[Entry], int], klass: Callable[[str], int]) -> bytes:
    """Serialize a record. `number`: maps an entry to its number in the table's numbering; `klass`: the same for a
    class. Raises InputError if it does not fit in a packed table."""
    try:
        parts = [_HEAD.pack(VERSION, len(record.groups), len(record.failed), record.stamp)]
        for config, status in record.failed:
            parts.append(_FAILURE.pack(number(Entry(config)), _STATUSES.index(status)))
        for one in record.groups:
            what = _HOT * (one.l2 == "hot") + _MODELLED * one.modelled + _ALL * (one.klass is None)
            parts.append(_GROUP.pack(what, 0 if one.klass is None else klass(one.klass), len(one.times), one.aten_us))
            parts += [_TIME.pack(number(t.entry), t.code, t.width, t.flags, t.expected) for t in one.times]
    except struct.error as error:
        raise InputError(f"too many times or configs for a packed table ({error})") from error
    return b"".join(parts)


def sealed(data: bytes, problem: int, device: int) -> bytes:
    """Append to a packed record the CRC-32 of its bytes and of its problem and device keys."""
    data = bytes([SEALED]) + data[1:]
    return data + _checksum(data, problem, device)


def opened(data: Any, problem: int, device: int) -> Any:
    """Check and remove the checksum of a sealed record; return any other value unchanged. Raises InputError."""
    if not isinstance(data, bytes) or data[:1] != bytes([SEALED]):
        return data
    data, found = data[:-_CRC_BYTES], data[-_CRC_BYTES:]
    if found != _checksum(data, problem, device):
        raise InputError("a record is damaged: its checksum differs")
    return bytes([VERSION]) + data[1:]


def counts(data: Any) -> tuple[int, int]:
    """Return the number of measured times (including failures) and of modelled times in a packed record. Times pooled
    over all classes are not counted again. Raises InputError."""
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
    """Deserialize a record from `pack`. `entry`: maps a number to its entry. Raises InputError, one line, for anything
    that `pack` does not produce."""
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
        raise InputError("a record's length does not match its header")
    if len({(one.l2, one.modelled, one.klass) for one in found}) < groups:
        raise InputError("a record has two groups of the same kind")
    return Record(tuple(found), failed, stamp)


def failures(data: Any, entry: Callable[[int], Entry]) -> tuple[tuple[Config, Status], ...]:
    """Return only `Record.failed`. Raises InputError."""
    *_, end = _head(data)
    try:
        return tuple((entry(n).config, _STATUSES[s]) for n, s in _FAILURE.iter_unpack(data[_HEAD.size : end]))
    except (struct.error, IndexError) as error:
        raise InputError(f"a record is malformed ({error})") from error


def entries(record: Record) -> Iterable[Entry]:
    """Return every entry that `pack` numbers, including repeats."""
    return chain((Entry(config) for config, _ in record.failed), (t.entry for one in record.groups for t in one.times))


def _checksum(data: bytes, problem: int, device: int) -> bytes:
    return crc32(data, crc32(struct.pack("<qq", problem, device))).to_bytes(_CRC_BYTES, "little")


def _head(data: Any, versions: Sequence[int] = (VERSION,)) -> tuple[int, int, int, int]:
    """Return the number of groups and of failures, the stamp, and the offset of the groups."""
    if not isinstance(data, bytes) or len(data) < _HEAD.size:
        raise InputError("a record is cut off")
    version, groups, failures, stamp = _HEAD.unpack_from(data)
    if version not in versions:
        raise InputError(f"a record has the unknown version {version}")
    return groups, failures, stamp, _HEAD.size + failures * _FAILURE.size


_time: Callable[[Iterable[Any]], Time] = partial(tuple.__new__, Time)
"""Creates a Time from its five values, three times faster than `Time`."""


def _group(
    head: tuple[int, int, int, float], data: bytes, entry: Callable[[int], Entry], classes: Sequence[str]
) -> Group:
    what, klass, count, aten_us = head
    if not count or len(data) != count * _TIME.size or what > _HOT + _MODELLED + _ALL:
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
