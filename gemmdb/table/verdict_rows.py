"""Verdict rows: writing, finding and checking them, and choosing the one to serve.

A row's `keys` end with a CRC-32 of these keys, the row's numbers, and its problem and device keys. It detects damage,
not forgery; rows of older files have none. The rest of a row is compared with the query. The check takes 0.7 us per
verdict (5.5 us with, 4.8 us without).

A packed table has no such rows. The verdicts in its records, which have a checksum, become rows when they are read.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any
from zlib import crc32

from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.table import dbfile, lookup_cache, schema
from gemmdb.table.handle import Handle
from gemmdb.table.measurement import LEAST_US, MOST_US
from gemmdb.table.row_cache import CONTEXT_BYTES, Context, RowCache
from gemmdb.table.verdict import Verdict, age

_CRC_BYTES = 4
_CRC_OF_ALL = 0x2144DF1C  # The CRC-32 of any data that ends with its own CRC-32, little-endian
_numbers = struct.Struct("<qqdddq").pack
"""The checksummed numbers: problem and device keys, ratio, spread, ATen's microseconds, runs."""
_NOWHERE = (-1,) * schema.PLACE_COLUMNS  # The primary key of no record
_LARGEST_RATIO = MOST_US / LEAST_US
_MOST_BYTES, _ROW_BYTES = 2**13, 256
"""Maximum bytes of cached verdicts per problem, and the bytes of a row without its keys and texts."""


def verdict_values(verdict: Verdict) -> tuple[Any, ...]:
    """Return a Verdict as a row of `verdict`."""
    problem, protocol, ties = verdict.problem, verdict.protocol, verdict.ties
    numbers = (verdict.ratio, verdict.spread, verdict.aten_us, verdict.runs)
    keys = schema.pack_keys(protocol.key, verdict.toolchain.key, problem.family_key, *(config.key for config in ties))
    keys += crc32(keys, crc32(_numbers(problem.key, verdict.device.key, *numbers))).to_bytes(_CRC_BYTES, "little")
    return (problem.key, verdict.device.key, protocol.key, verdict.klass, ties[0].key, keys, *numbers, problem.head)


def without_checksum(keys: Any) -> Any:
    """Return the `keys` of a verdict row without their checksum, if any."""
    return keys[:-_CRC_BYTES] if isinstance(keys, bytes) and len(keys) % 8 == _CRC_BYTES else keys


class VerdictRows:
    """The verdicts of one open file. A `device` is the file's own record of it. Every method raises TableError."""

    def __init__(self, file: Handle, cache: RowCache) -> None:
        self._file, self._cache = file, cache

    def find(self, problem: Problem, device: Device, l2: str, klass: str | None) -> Verdict | None:
        """See `Table.verdict`."""
        found, resets = None, -1
        while resets != self._cache.resets:  # The numbers of a packed table are those of one file.
            resets = self._cache.resets
            found = self._find(problem, device, l2, klass)
        return found

    def _find(self, problem: Problem, device: Device, l2: str, klass: str | None) -> Verdict | None:
        cache, seen, keys = self._cache, self._file.cache, (problem.key, device.key)
        rows = None if seen is None else seen.get(keys)
        if rows is None:
            place = None if seen is None else seen.place()
            rows = self._read(problem, device)
            if place is not None and _usual(rows):
                place[keys] = rows
        for row in rows:
            try:  # Inlined from `RowCache.context`.
                context = cache.contexts[device.kind][row[0][:CONTEXT_BYTES]]
            except (KeyError, TypeError):
                context = cache.context(device.kind, row[0])
            if context.protocol.l2 == l2 and (klass is None or context.klass == klass) and not context.superseded:
                return self._verdict(row, context, problem, device)
        return None

    def all(self, problem: Problem, device: Device) -> list[Verdict]:
        """See `Table.verdicts`."""
        return self._cache.consistent(lambda: self._all(problem, device))

    def _all(self, problem: Problem, device: Device) -> list[Verdict]:
        sql, args = self._query(problem, device)
        rows = self._file.fetch(sql, args, schema.MOST_VERDICTS, "verdicts")
        if self._cache.packed:
            rows = self._unpacked(rows, problem, device)
        pairs = [(row, self._cache.context(device.kind, row[0])) for row in rows]
        found = [(row, self._verdict(row, at, problem, device)) for row, at in pairs if not at.superseded]
        # Values of other types, which cannot be compared, have raised TableError by now.
        found.sort(key=lambda pair: pair[0] if pair[1] else ())
        return [verdict for _, verdict in found if verdict is not None]

    def _query(self, problem: Problem, device: Device) -> tuple[str, Sequence[Any]]:
        """Return the statement that finds the verdicts on a problem, and its arguments."""
        self._file.ensure()
        if not self._cache.packed:
            return schema.VERDICT_SQL, (problem.key, device.key)
        return schema.RECORD_SQL, self._cache.place(problem, device) or _NOWHERE

    def _read(self, problem: Problem, device: Device) -> lookup_cache.Rows:
        """Return the verdict rows for a problem and a device, best first."""
        file = self._file
        # Inlined from `Handle.fetch`: saving two calls makes a lookup 10% faster.
        db = None
        try:
            sql, args = self._query(problem, device)
            with file.lock:
                if file.busy:  # A signal handler runs a lookup while this thread reads.
                    rows = file.fetch(sql, args, schema.MOST_VERDICTS, "verdicts")
                else:
                    file.busy = True
                    try:
                        db = file.db or file.connect()
                        file.deadline.begin()
                        rows = db.execute(sql, args).fetchmany(schema.MOST_VERDICTS + 1)
                    finally:
                        file.busy = False
        except dbfile.FAULTS as error:
            if file.moved(db):
                return self._read(problem, device)
            raise file.broken(error) from error
        if rows and self._cache.packed:
            rows = self._unpacked(rows, problem, device)
        if len(rows) > 1:
            if len(rows) > schema.MOST_VERDICTS:
                raise file.crowded(schema.MOST_VERDICTS, "verdicts")
            rows.sort(key=lambda row: self._rank(row, device), reverse=True)
        return rows

    def _unpacked(self, rows: lookup_cache.Rows, problem: Problem, device: Device) -> list[tuple[Any, ...]]:
        """Return the verdicts in the record of a packed table, like rows of `verdict`."""
        found: list[tuple[Any, ...]] = []
        for key, data in rows:
            if key != problem.key:
                raise self._cache.error("a problem does not match its key")
            found += self._cache.verdicts(self._cache.opened(data, key, device.key), problem)
        return found

    def _verdict(self, row: tuple[Any, ...], context: Context, problem: Problem, device: Device) -> Verdict | None:
        keys, ratio, spread, aten_us, runs, head = row
        if str(head) + context.tail != problem.text:
            return None  # An attacker can construct texts whose 64-bit keys collide.
        try:
            plausible = 1 / _LARGEST_RATIO <= ratio <= _LARGEST_RATIO and 0.0 <= spread < math.inf
            plausible = plausible and LEAST_US <= aten_us <= MOST_US and runs > 0 and type(runs) is int
        except TypeError:
            plausible = False
        if not plausible:
            raise self._cache.error("a verdict is malformed")
        if len(keys) % 8 == _CRC_BYTES and not self._cache.packed:
            if crc32(keys, crc32(_numbers(problem.key, device.key, ratio, spread, aten_us, runs))) != _CRC_OF_ALL:
                raise self._cache.error("a verdict is damaged: its checksum differs")
            keys = keys[:-_CRC_BYTES]
        ties = context.ties.get(keys[CONTEXT_BYTES:]) or self._cache.ties(keys[CONTEXT_BYTES:], context)
        return Verdict(problem, device, context.protocol, context.toolchain, ties, ratio, spread, aten_us, runs)

    def _rank(self, row: Sequence[Any], device: Device) -> tuple[Any, ...]:
        """Return the sort key of verdicts: measured before modelled, then the newest procedure, the newest toolchain,
        the most samples."""
        protocol, toolchain, *_ = self._cache.context(device.kind, row[0])
        return protocol.clock != "model", protocol.version, age(toolchain), protocol.samples, protocol.text


def _usual(rows: lookup_cache.Rows) -> bool:
    """Return whether the rows have the writer's types and are small: a hostile file may contain anything."""
    size = 0
    for row in rows:
        keys, *_, head = row
        if tuple(map(type, row)) != (bytes, float, float, float, int, str):
            return False
        size += _ROW_BYTES + len(keys) + len(head)
    return size <= _MOST_BYTES
