"""Table: a read-only file of measurements and their verdicts. Thread-safe and fork-safe."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from operator import itemgetter
from pathlib import Path
from typing import Any

from gemmdb.errors import InputError, TableError
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.table import bulk_reading, dbfile, packed_records, schema
from gemmdb.table.handle import Handle
from gemmdb.table.measurement import Measurement, fingerprint
from gemmdb.table.neighbours import PLAIN, Families, Metric
from gemmdb.table.numbering import Place
from gemmdb.table.record import Entry, Record, Time, few_kernels, record
from gemmdb.table.row_cache import RowCache
from gemmdb.table.verdict import Verdict
from gemmdb.table.verdict_rows import VerdictRows

_ALL = (
    f"SELECT {', '.join(schema.COLUMNS)} FROM measurement WHERE (problem, device, id) > (?, ?, ?)"
    " ORDER BY problem, device, id LIMIT 1000"
)
_PAIRS = f"SELECT DISTINCT problem, device FROM {{}} WHERE {schema.AFTER} {schema.PAGE}"
_RUNS = "SELECT id, text, provenance FROM run WHERE id > ? ORDER BY id LIMIT 100"


class Table:
    """One open file. All data read from it is validated; a bad file raises TableError.

    `digest`: the content digest, equal for equal measurements in any order. `generation`: number of builds or merges
    that changed the file. `uid`: distinguishes two files of the same generation. `built`: the digest at the last change
    of the generation, which distinguishes two copies that were built separately since. `version`: schema version.
    `packed`: whether it stores records instead of measurements; `source`: the digest of the table that a packed table
    was made from. All of these are read when the file is opened, and again when it is reopened and the path has a
    different file.
    """

    def __init__(
        self, path: Path, immutable: bool = False, check: Callable[[], None] | None = None, pinned: bool = False
    ) -> None:
        self.path = path
        self._file = Handle(path, immutable, weakref.WeakMethod(self._replaced), check, pinned)
        self._devices: tuple[Device, ...] | None = None
        self._unknown_devices: set[int] = set()
        self._few: dict[tuple[int, int], bool] = {}
        self._cache = RowCache(path, self._file.fetch)
        self._verdicts = VerdictRows(self._file, self._cache)
        self._families = Families(self._file, self._cache)
        self._replaced(self._file.header())

    @classmethod
    def open(
        cls, path: Path, *, immutable: bool = False, check: Callable[[], None] | None = None, pinned: bool = False
    ) -> Table:
        """Open the table at `path`. `immutable`: no process writes the file. `check`: called whenever the file is
        opened, and raises TableError if it may not be used. `pinned`: that compares its digest with a known one, so
        reading it has no time limit. Raises TableError."""
        return cls(Path(path), immutable, check, pinned)

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Idempotent; a later call on the table reopens it."""
        self._file.close()

    def devices(self) -> tuple[Device, ...]:
        """Return the devices with measurements in this file, with their figures, ordered by canonical form. Cached for
        an immutable file: a lookup asks each table for similar devices."""
        self._file.ensure()  # Another file may be at the path since a fork or `close`.
        found = self._devices
        if found is None:
            keys = self._file.fetch("SELECT id FROM device ORDER BY text", (), schema.MOST_DEVICES, "devices")
            found = tuple(self._cache.device(key) for (key,) in keys)
            if self._file.immutable:
                self._devices = found
        return found

    def verdict(self, problem: Problem, device: Device, l2: str = "cold", klass: str | None = None) -> Verdict | None:
        """Return the verdict on a problem, or None. `klass`: toolchain class; None uses the newest toolchain's."""
        known = self._known(device)
        return None if known is None else self._verdicts.find(problem, known, l2, klass)

    def verdicts(self, problem: Problem, device: Device) -> list[Verdict]:
        """Return all verdicts on a problem, for every protocol and toolchain class, in a fixed order."""
        known = self._known(device)
        return [] if known is None else self._verdicts.all(problem, known)

    def decided(self) -> Iterator[tuple[Problem, Device]]:
        """Yield every problem and device with a verdict, in (arbitrary) key order. Reads in small batches."""
        return self._packed_pairs(decided=True) if self._is_packed() else self._pairs("verdict")

    def pairs(self) -> Iterator[tuple[Problem, Device]]:
        """Yield every problem and device with any data in the file, in key order."""
        return self._packed_pairs() if self._is_packed() else self._pairs("measurement")

    def neighbours(
        self, problem: Problem, device: Device, l2: str = "cold", limit: int = 64, within: Sequence[float] = ()
    ) -> list[Problem]:
        """Return up to `limit` problems of the same op and family that were measured on the device, nearest in log M,
        N, K first, including the problem itself. `within`: maximum ratios of M, N and K to the problem's."""
        return [one for _, one in self.distances(problem, device, l2, limit, within)]

    def distances(
        self, problem: Problem, device: Device, l2: str, limit: int, within: Sequence[float], metric: Metric = PLAIN
    ) -> list[tuple[float, Problem]]:
        """Like `neighbours`, by a metric and with distances. For a large family in a file that may change, the
        candidates are the 2 x `limit` nearest by plain distance."""
        fixed = self._is_packed() or self._file.immutable
        with self._file.lookup():
            return self._families.distances(problem, device, l2, limit, within, metric, fixed)

    def families(self) -> list[Problem]:
        """Return one problem of every op and family. Raises TableError if there are more than MOST_FAMILIES."""
        with self._file.lookup():
            return self._families.each()

    def state(self) -> str:
        """Return a text that changes with every row written."""
        if self._file.immutable:
            return self.digest
        return str(self._file.fetch("SELECT value FROM meta WHERE name = 'rows_digest'"))

    def rows(self, problem: Problem, device: Device) -> list[Measurement]:
        """Return every measurement of a problem on a device, including failures, in a fixed order. A packed table has
        none and raises TableError."""
        if self._is_packed():
            raise self._without_rows()
        keys = (problem.key, device.key)
        found = self._file.fetch(schema.ROWS_SQL, keys, schema.MOST_MEASUREMENTS, "measurements of a problem")
        if found and self._cache.problem(problem.key).text != problem.text:
            return []
        rows = list(map(self._cache.measurement, found))
        if any(row.key != values[2] for row, values in zip(rows, found, strict=True)):
            raise self._cache.error("a measurement is damaged: it does not match its key")
        return rows

    def record(self, problem: Problem, device: Device) -> Record | None:
        """Return all times of a problem on a device, pooled over runs, and its failures; None without data."""
        if not self._is_packed():
            return record(rows) if (rows := self.rows(problem, device)) else None
        return self._cache.consistent(lambda: self._packed_record(problem, device))

    def pooled(self, problem: Problem, device: Device, l2: str = "cold", klass: str | None = None) -> tuple[Time, ...]:
        """Return every timed config of a problem, fastest first: those measured in full and those that are `slow` by a
        short estimate. Falls back to modelled times if nothing was measured."""
        found = self.record(problem, device)
        groups = (found.find(l2, klass, modelled) for modelled in (False, True)) if found else ()
        return next((group.times for group in groups if group), ())

    def few_kernels(self, problem: Problem, device: Device) -> bool:
        """Return whether few of our kernels were timed on a problem beside a library's algorithms. Much faster than
        reading its record."""
        keys = (problem.key, device.key)
        if self._is_packed():
            if keys not in self._few:
                self._few[keys] = self._cache.consistent(lambda: self._packed_few(problem, device))
            return self._few[keys]
        found = self._file.fetch(schema.TIMED_SQL, keys, schema.MOST_MEASUREMENTS, "timed configs of a problem")
        timed = {self._cache.config(key) for (key,) in found}
        return few_kernels([Entry(config) for config in timed - self.barred(problem, device)])

    def disturbed(self, problem: Problem, device: Device, config: Config) -> bool:
        """Return whether a config of a problem, or ATen, was timed only while other programs kept the machine busy."""
        found = self.record(problem, device)
        return found is not None and not found.under_load.isdisjoint((config, ATEN))

    def settled(self, problem: Problem, device: Device) -> bool:
        """Return whether the verdicts of a problem are up to date with its rows."""
        return self._is_packed() or not self._file.fetch(schema.PENDING_SQL, (problem.key, device.key))

    def barred(self, problem: Problem, device: Device) -> frozenset[Config]:
        """Return the configs that were wrong or crashed in any row of the problem on the device."""
        if self._known(device) is None:
            return frozenset()
        if self._is_packed():
            return self._cache.consistent(lambda: self._banned(problem, device))
        keys = (problem.key, device.key)
        found = self._file.fetch(schema.BARRED_SQL, keys, schema.MOST_MEASUREMENTS, "failed configs of a problem")
        return frozenset(self._cache.config(key) for (key,) in found)

    def measurements(self) -> Iterator[Measurement]:
        """Yield all measurements. Reads in small batches, so no writer waits for a slow consumer. A packed table has
        none and raises TableError."""
        if self._is_packed():
            raise self._without_rows()
        yield from map(self._cache.measurement, self._file.pages(_ALL, 3))

    def content_digest(self) -> str:
        """Return the digest recomputed from all content, 32 hexadecimal digits, which must equal `digest`."""
        if not self.packed:
            return f"{sum(map(fingerprint, self.measurements())) % 2**128:032x}"
        with closing(bulk_reading.connect(self.path)) as db:
            try:
                return bulk_reading.packed_digest(db)
            except dbfile.FAULTS as error:
                raise dbfile.broken(self.path, error) from error

    def summary(self) -> list[dict[str, Any]]:
        """Return one JSON-ready entry per device, with the keys of `gemmdb tables --json`."""
        head = {"schema_version": self.version, "packed": self.packed, "digest": self.digest}
        return bulk_reading.summary(self._file, self._cache, self.packed, self.devices(), head)

    def provenance(self) -> list[dict[str, Any]]:
        """Return the provenance of each run, JSON-ready, ordered by run id."""
        found = []
        for _, run, text in self._file.pages(_RUNS, 1):
            try:
                found.append({**schema.parse_provenance(text), "run": str(run)})
            except InputError as error:
                raise self._cache.error(str(error)) from error
        return sorted(found, key=itemgetter("run"))

    def _replaced(self, head: schema.Header) -> None:
        """Take the new header and clear all caches: after a fork or `close`, the path had different content."""
        self.digest, self.generation, self.built, self.uid, self.version, self.packed, self.source = head
        self._devices = None
        self._unknown_devices.clear()
        self._few.clear()
        self._families.forget()
        self._cache.reset(self.packed)

    def _is_packed(self) -> bool:
        """Return whether the file that is at the path now is packed, if the file was closed."""
        self._file.ensure()
        return self.packed

    def _without_rows(self) -> TableError:
        return TableError(
            f"{self.path} is packed: it holds pooled times and no measurements; use the table that it was packed from,"
            " or the archives"
        )

    def _pairs(self, table: str) -> Iterator[tuple[Problem, Device]]:
        """Yield every problem and device of an SQL table. Reads in small batches."""
        return self._of_keys(self._file.pages(_PAIRS.format(table), 2))

    def _of_keys(self, pairs: Iterable[Sequence[Any]]) -> Iterator[tuple[Problem, Device]]:
        for problem, device in pairs:
            yield self._cache.problem(problem), self._cache.device(device)

    def _packed_pairs(self, decided: bool = False) -> Iterator[tuple[Problem, Device]]:
        """Yield every problem and device of a packed table, or those with verdicts, in the order of their keys. That is
        not the order of the records."""
        found: list[tuple[int, int, Place]] = []
        for family, n, k, m, batch, device, problem, data in self._file.pages(schema.RECORDS_SQL, schema.PLACE_COLUMNS):
            known = self._cache.device_at(device)
            with self._cache.errors():
                kept = packed_records.stored(packed_records.opened(data, problem, known.key)) or not decided
            if kept:
                found.append((problem, known.key, (family, n, k, m, batch)))
        for problem, device, place in sorted(found, key=itemgetter(0, 1)):
            yield self._cache.problem_at(place, problem), self._cache.device(device)

    def _packed_record(self, problem: Problem, device: Device) -> Record | None:
        data = self._data(problem, device)
        return None if data is None else self._cache.record(data, device)

    def _banned(self, problem: Problem, device: Device) -> frozenset[Config]:
        data = self._data(problem, device)
        return frozenset() if data is None else self._cache.banned(data)

    def _packed_few(self, problem: Problem, device: Device) -> bool:
        data = self._data(problem, device)
        return data is not None and self._cache.few_kernels(data)

    def _data(self, problem: Problem, device: Device) -> bytes | None:
        """Return the opened record of a problem on a device in a packed table."""
        place = self._cache.place(problem, device)
        found = self._file.fetch(schema.RECORD_SQL, place) if place else ()
        if not found:
            return None
        if found[0][0] != problem.key:
            raise self._cache.error("a problem does not match its key")
        return self._cache.opened(found[0][1], problem.key, device.key)

    def _known(self, device: Device) -> Device | None:
        """Return the file's own record of a device, or None. For an immutable file None is cached: every lookup queries
        each shipped table, and most of them cover other devices."""
        if device.key in self._unknown_devices:
            return None
        found = self._cache.find_device(device)
        if found is None and self._file.immutable:
            self._unknown_devices.add(device.key)
        return found
