"""Table: one file of measurements and their verdicts, open read-only. Safe to use in threads and after a fork."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from operator import itemgetter
from pathlib import Path
from typing import Any

from gemmdb.errors import InputError, TableError
from gemmdb.kernels.config import Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.table import bulk_reading, dbfile, schema
from gemmdb.table.handle import Handle
from gemmdb.table.measurement import MARKED, Measurement, fingerprint
from gemmdb.table.neighbours import PLAIN, Families, Metric
from gemmdb.table.record import Record, Time, record
from gemmdb.table.row_cache import RowCache
from gemmdb.table.verdict import Verdict
from gemmdb.table.verdict_rows import VerdictRows

_ALL = (
    f"SELECT {', '.join(schema.COLUMNS)} FROM measurement WHERE (problem, device, id) > (?, ?, ?)"
    " ORDER BY problem, device, id LIMIT 1000"
)
_PAIRS = f"SELECT DISTINCT problem, device FROM {{}} WHERE {schema.AFTER} {schema.PAGE}"
_MARKED = (
    f"SELECT DISTINCT problem, device FROM measurement WHERE detail IN ({', '.join(map(repr, MARKED))})"
    f" AND {schema.AFTER} {schema.PAGE}"
)
_RUNS = "SELECT id, text, provenance FROM run WHERE id > ? ORDER BY id LIMIT 100"


class Table:
    """One open file. Everything read from it is validated; TableError says what is wrong with it.

    `digest`: the content digest, equal for equal measurements in any order. `generation`: how often a build or merge
    changed the file. `uid` tells two files of the same generation apart. `built`, the digest when the generation was
    last raised, tells apart two copies that were built further. `version`: of its schema. `packed`: whether it holds
    records instead of measurements; `source`: then the digest of the table that it was made of. All of these are read
    when the file is opened, and again when it is reopened and another file lies at the path.
    """

    def __init__(self, path: Path, immutable: bool = False, check: Callable[[], None] | None = None) -> None:
        self.path = path
        self._file = Handle(path, immutable, weakref.WeakMethod(self._replaced), check)
        self._unknown_devices: set[int] = set()
        self._cache = RowCache(path, self._file.fetch)
        self._verdicts = VerdictRows(self._file, self._cache)
        self._families = Families(self._file, self._cache)
        self._replaced(self._file.header())

    @classmethod
    def open(cls, path: Path, *, immutable: bool = False, check: Callable[[], None] | None = None) -> Table:
        """The table at `path`; `immutable` promises that no process writes the file. `check` is called whenever the
        file is opened, and raises TableError for one that may not be used. Raises TableError."""
        return cls(Path(path), immutable, check)

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Idempotent; a later call on the table opens it again."""
        self._file.close()

    def devices(self) -> tuple[Device, ...]:
        """The devices with measurements in this file, with their figures, in the order of their canonical forms."""
        found = self._file.fetch("SELECT id FROM device ORDER BY text", (), schema.MOST_DEVICES, "devices")
        return tuple(self._cache.device(key) for (key,) in found)

    def verdict(self, problem: Problem, device: Device, l2: str = "cold", klass: str | None = None) -> Verdict | None:
        """The verdict on a problem, None when the file has none. `klass` None takes the newest toolchain's."""
        known = self._known(device)
        return None if known is None else self._verdicts.find(problem, known, l2, klass)

    def verdicts(self, problem: Problem, device: Device) -> list[Verdict]:
        """All verdicts on a problem, of every protocol and toolchain class, in a fixed order."""
        known = self._known(device)
        return [] if known is None else self._verdicts.all(problem, known)

    def decided(self) -> Iterator[tuple[Problem, Device]]:
        """Every problem and device with a verdict, in the order of their keys, which says nothing about them. They are
        read in small pieces."""
        return self._pairs("verdict")

    def pairs(self) -> Iterator[tuple[Problem, Device]]:
        """Every problem and device of which the file holds anything, in the order of their keys."""
        return self._pairs("record" if self.packed else "measurement")

    def neighbours(
        self, problem: Problem, device: Device, l2: str = "cold", limit: int = 64, within: Sequence[float] = ()
    ) -> list[Problem]:
        """The problems of the same op and family that were measured on the device, the nearest in log M, N, K first,
        the problem itself included; at most `limit`, with M, N and K `within` these ratios of the problem's."""
        return [one for _, one in self.distances(problem, device, l2, limit, within)]

    def distances(
        self, problem: Problem, device: Device, l2: str, limit: int, within: Sequence[float], metric: Metric = PLAIN
    ) -> list[tuple[float, Problem]]:
        """The same by a metric, with their distances. Of a large family of a file that may change, the nearest of
        twice as many by the plain distance."""
        fixed = self.packed or self._file.immutable
        with self._file.lookup():
            return self._families.distances(problem, device, l2, limit, within, metric, fixed)

    def families(self) -> list[Problem]:
        """A problem of every op and family. Raises TableError if there are more than MOST_FAMILIES."""
        with self._file.lookup():
            return self._families.each()

    def state(self) -> str:
        """A text that changes with every row written."""
        if self._file.immutable:
            return self.digest
        return str(self._file.fetch("SELECT value FROM meta WHERE name = 'rows_digest'"))

    def rows(self, problem: Problem, device: Device) -> list[Measurement]:
        """Every measurement of a problem on a device, failures included, in a fixed order. A packed table has none and
        raises TableError."""
        if self.packed:
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
        """All times of a problem on a device, pooled over runs, and what failed; None without any."""
        if not self.packed:
            return record(rows) if (rows := self.rows(problem, device)) else None
        found = self._file.fetch(schema.RECORD_SQL, (problem.key, device.key))
        same = found and self._cache.problem(problem.key).text == problem.text
        return self._cache.record(found[0][0], problem.key, device.key) if same else None

    def pooled(self, problem: Problem, device: Device, l2: str = "cold", klass: str | None = None) -> tuple[Time, ...]:
        """Every timed config of a problem, fastest first: those measured in full and those that are `slow` by a short
        estimate. Modelled times count where none was measured."""
        found = self.record(problem, device)
        groups = (found.find(l2, klass, modelled) for modelled in (False, True)) if found else ()
        return next((group.times for group in groups if group), ())

    def under_load(self) -> Iterator[tuple[tuple[int, int], Record]]:
        """The records in which something was timed on a busy machine only, behind the keys of problem and device. They
        are read one by one."""
        # In a packed table, the mark is inside of a record.
        pages = self._file.pages(_PAIRS.format("record"), 2) if self.packed else self._file.pages(_MARKED, 2, bulk=True)
        for problem, device in pages:
            found = self.record(self._cache.problem(problem), self._cache.device(device))
            if found is not None and found.under_load:
                yield (problem, device), found

    def settled(self, problem: Problem, device: Device) -> bool:
        """Whether the verdicts of a problem are as new as its rows."""
        return self.packed or not self._file.fetch(schema.PENDING_SQL, (problem.key, device.key))

    def barred(self, problem: Problem, device: Device) -> frozenset[Config]:
        """The configs that were wrong or crashed in some row of the problem on the device."""
        if self._known(device) is None:
            return frozenset()
        keys = (problem.key, device.key)
        if self.packed:
            found = self._file.fetch(schema.RECORD_SQL, keys)
            return self._cache.banned(found[0][0], *keys) if found else frozenset()
        found = self._file.fetch(schema.BARRED_SQL, keys, schema.MOST_MEASUREMENTS, "failed configs of a problem")
        return frozenset(self._cache.config(key) for (key,) in found)

    def measurements(self) -> Iterator[Measurement]:
        """All measurements. They are read in small pieces, so no writer waits for a slow consumer. A packed table has
        none and raises TableError."""
        if self.packed:
            raise self._without_rows()
        yield from map(self._cache.measurement, self._file.pages(_ALL, 3))

    def content_digest(self) -> str:
        """The digest that `digest` must be: 32 hexadecimal digits, computed anew from everything."""
        if not self.packed:
            return f"{sum(map(fingerprint, self.measurements())) % 2**128:032x}"
        with closing(bulk_reading.connect(self.path)) as db:
            try:
                return bulk_reading.packed_digest(db)
            except dbfile.FAULTS as error:
                raise dbfile.broken(self.path, error) from error

    def summary(self) -> list[dict[str, Any]]:
        """One JSON-ready entry per device, with the keys of `gemmdb tables --json`."""
        head = {"schema_version": self.version, "packed": self.packed, "digest": self.digest}
        return bulk_reading.summary(self._file, self._cache, self.packed, self.devices(), head)

    def provenance(self) -> list[dict[str, Any]]:
        """What each run recorded about itself, JSON-ready, ordered by run id."""
        found = []
        for _, run, text in self._file.pages(_RUNS, 1):
            try:
                found.append({**schema.parse_provenance(text), "run": str(run)})
            except InputError as error:
                raise self._cache.error(str(error)) from error
        return sorted(found, key=itemgetter("run"))

    def _replaced(self, head: schema.Header) -> None:
        """Take the header and forget all that was read: after a fork or `close`, the path led to other content."""
        self.digest, self.generation, self.built, self.uid, self.version, self.packed, self.source = head
        self._unknown_devices.clear()
        self._families.forget()
        self._cache.reset(self.packed)

    def _without_rows(self) -> TableError:
        return TableError(
            f"{self.path} is packed: it holds pooled times and no measurements; use the table that it was packed from,"
            " or the archives"
        )

    def _pairs(self, table: str) -> Iterator[tuple[Problem, Device]]:
        """Every problem and device of an SQL table, read in small pieces."""
        for problem, device in self._file.pages(_PAIRS.format(table), 2):
            yield self._cache.problem(problem), self._cache.device(device)

    def _known(self, device: Device) -> Device | None:
        """The file's own record of a device; None if it has none. For an immutable file a None is cached: every lookup
        queries each shipped table, and most of them are about other devices."""
        if device.key in self._unknown_devices:
            return None
        found = self._cache.find_device(device)
        if found is None and self._file.immutable:
            self._unknown_devices.add(device.key)
        return found
