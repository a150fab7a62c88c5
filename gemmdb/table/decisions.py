"""The verdicts of one open file: how they are found, and how the one to serve is chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from zlib import crc32

from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.table import dbfile, remembered, schema
from gemmdb.table.checksum import BYTES, NUMBERS, WHOLE
from gemmdb.table.handle import Handle
from gemmdb.table.measurement import LEAST_US, MOST_US
from gemmdb.table.row_cache import CONTEXT, Context, RowCache
from gemmdb.table.verdict import Verdict, age

_WIDEST = MOST_US / LEAST_US
"""The largest ratio of two times."""
_MOST_BYTES, _ROW = 2**13, 256
"""The most bytes of the verdicts on a problem that are remembered, and those of a row without its keys and texts."""


class Decisions:
    """The verdicts of one open file. A `device` is the file's own record of it. Every method raises TableError."""

    def __init__(self, file: Handle, cache: RowCache) -> None:
        self._file, self._cache = file, cache

    def find(self, problem: Problem, device: Device, l2: str, klass: str | None) -> Verdict | None:
        """See `Table.verdict`."""
        cache, seen, asked = self._cache, self._file.remembered, (problem.key, device.key)
        rows = None if seen is None else seen.get(asked)
        if rows is None:
            place = None if seen is None else seen.place()
            rows = self._read(asked, device)
            if place is not None and _usual(rows):
                place[asked] = rows
        for row in rows:
            try:  # Inlined from `RowCache.context`.
                context = cache.contexts[device.kind][row[0][:CONTEXT]]
            except (KeyError, TypeError):
                context = cache.context(device.kind, row[0])
            if context.protocol.l2 == l2 and (klass is None or context.klass == klass):
                return self._verdict(row, context, problem, device)
        return None

    def every(self, problem: Problem, device: Device) -> list[Verdict]:
        """See `Table.verdicts`."""
        args = (problem.key, device.key)
        rows = self._file.fetch_few(schema.VERDICT_SQL, args, schema.MOST_VERDICTS, "verdicts")
        found = [(row, self._verdict(row, self._cache.context(device.kind, row[0]), problem, device)) for row in rows]
        # Values of other types, which cannot be compared, have raised TableError by now.
        kept = sorted((pair for pair in found if pair[1] is not None), key=lambda pair: pair[0])
        return [verdict for _, verdict in kept if verdict is not None]

    def _read(self, asked: remembered.Key, device: Device) -> remembered.Rows:
        """The rows of the verdicts on a problem and a device, the best first."""
        file = self._file
        # Inlined from `Handle.fetch_few`: two calls fewer save a tenth of the time of a lookup.
        db = None
        try:
            with file.lock:
                if file.busy:  # A signal handler asks while this thread reads.
                    rows = file.fetch_few(schema.VERDICT_SQL, asked, schema.MOST_VERDICTS, "verdicts")
                else:
                    file.busy = True
                    try:
                        db = file.db or file.connect()
                        file.deadline.begin()
                        rows = db.execute(schema.VERDICT_SQL, asked).fetchmany(schema.MOST_VERDICTS + 1)
                    finally:
                        file.busy = False
        except dbfile.FAULTS as error:
            if file.moved(db):
                return self._read(asked, device)
            raise file.broken(error) from error
        if len(rows) > 1:
            if len(rows) > schema.MOST_VERDICTS:
                raise file.crowded(schema.MOST_VERDICTS, "verdicts")
            rows.sort(key=lambda row: self._rank(row, device), reverse=True)
        return rows

    def _verdict(self, row: tuple[Any, ...], context: Context, problem: Problem, device: Device) -> Verdict | None:
        keys, ratio, spread, aten_us, runs, head = row
        if str(head) + context.tail != problem.text:
            return None  # Somebody can construct texts whose 64-bit keys collide.
        try:
            plausible = 1 / _WIDEST <= ratio <= _WIDEST and 0.0 <= spread < math.inf
            plausible = plausible and LEAST_US <= aten_us <= MOST_US and runs > 0 and type(runs) is int
        except TypeError:
            plausible = False
        if not plausible:
            raise self._cache.error("a verdict is malformed")
        if len(keys) % 8 == BYTES:  # Rows of older files have no checksum.
            if crc32(keys, crc32(NUMBERS(problem.key, device.key, ratio, spread, aten_us, runs))) != WHOLE:
                raise self._cache.error("a verdict is damaged: its checksum differs")
            keys = keys[:-BYTES]
        ties = context.ties.get(keys[CONTEXT:]) or self._cache.ties(keys[CONTEXT:], context)
        return Verdict(problem, device, context.protocol, context.toolchain, ties, ratio, spread, aten_us, runs)

    def _rank(self, row: Sequence[Any], device: Device) -> tuple[Any, ...]:
        """The sort key of verdicts: measured before modelled, then the newest procedure, the newest toolchain, the most
        samples."""
        protocol, toolchain, *_ = self._cache.context(device.kind, row[0])
        return (
            protocol.clock != "model",
            protocol.version,
            age(toolchain),
            protocol.samples,
            protocol.text,
        )


def _usual(rows: remembered.Rows) -> bool:
    """Whether the rows have the types that the writer gives them, and are small: a hostile file may hold anything."""
    size = 0
    for keys, ratio, spread, aten_us, runs, head in rows:
        if not (type(ratio) is type(spread) is type(aten_us) is float and type(runs) is int and type(head) is str):
            return False
        if type(keys) is not bytes:
            return False
        size += _ROW + len(keys) + len(head)
    return size <= _MOST_BYTES
