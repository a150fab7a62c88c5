"""What a file holds of each problem and device: its measurements, or in a packed table one record of them."""

from __future__ import annotations

import hashlib
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from gemmdb.errors import TableError
from gemmdb.kernels.config import Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.table import dbfile, schema
from gemmdb.table.handle import Handle, OnceInOrder
from gemmdb.table.measurement import MARKED, Measurement, fingerprint
from gemmdb.table.read_timeouts import Deadline, bulk_seconds
from gemmdb.table.record import Record, record
from gemmdb.table.row_cache import RowCache

COPIED = {"device": 1, "protocol": 1, "toolchain": 1, "run": 1, "verdict": 4}
"""The SQL tables that packing copies as they are, with the number of columns of their primary keys."""
_DIGESTED = {"config": 1, "problem": 1, **COPIED, "record": 2, "numbering": 1}

_ALL = (
    f"SELECT {', '.join(schema.COLUMNS)} FROM measurement WHERE (problem, device, id) > (?, ?, ?)"
    " ORDER BY problem, device, id LIMIT 1000"
)
_AFTER = "(problem, device) > (?, ?)"
_PAGE = "ORDER BY problem, device LIMIT 1000"
_MARKED = (
    f"SELECT DISTINCT problem, device FROM measurement WHERE detail IN ({', '.join(map(repr, MARKED))}) AND {_AFTER}"
    f" {_PAGE}"
)
_SIZES = (
    "SELECT problem, device, count(*), sum((protocol IN ({})) IS TRUE) FROM measurement"
    f" WHERE {_AFTER} GROUP BY problem, device {_PAGE}"
)
_OPS = (
    "SELECT DISTINCT problem, device, op FROM {} AS held JOIN problem ON problem.id = held.problem"
    f" WHERE {_AFTER} {_PAGE}"
)
_RECORDS = f"SELECT problem, device, data FROM record WHERE {_AFTER} {_PAGE}"

Counts = Mapping[tuple[int, bool], int]
"""The number of times and failures by the key of a device and whether the cost model computed them."""


class Measurements:
    """The contents of a table that a build or live tuning writes. As those of `Records`, its methods are described in
    Table, and raise TableError for what is malformed. `table`: the SQL table that holds them."""

    table = "measurement"

    def __init__(self, file: Handle, cache: RowCache) -> None:
        self._file, self._cache = file, cache

    def rows(self, problem: Problem, device: Device) -> list[Measurement]:
        """Every measurement of a problem on a device, in the order of their keys."""
        args = (problem.key, device.key)
        found = self._file.fetch(schema.ROWS_SQL, args, schema.MOST_MEASUREMENTS, "measurements of a problem")
        if found and self._cache.problem(problem.key).text != problem.text:
            return []
        rows = list(map(self._cache.measurement, found))
        if any(row.key != values[2] for row, values in zip(rows, found, strict=True)):
            raise self._cache.error("a measurement is damaged: it does not match its key")
        return rows

    def all(self) -> Iterator[Measurement]:
        """All measurements. They are read in small pieces, so no writer waits for a slow consumer."""
        return map(self._cache.measurement, self._file.pages(_ALL, 3))

    def record(self, problem: Problem, device: Device) -> Record | None:
        """The record of the rows."""
        rows = self.rows(problem, device)
        return record(rows) if rows else None

    def marked(self) -> Iterable[Sequence[int]]:
        """The keys of problems and devices among which are all with a time of a busy machine, by the mark in a row."""
        return self._file.pages(_MARKED, 2, bulk=True)

    def settled(self, problem: Problem, device: Device) -> bool:
        """False if rows were written since the verdicts."""
        return not self._file.fetch(schema.PENDING_SQL, (problem.key, device.key))

    def barred(self, problem: Problem, device: Device) -> frozenset[Config]:
        """The configs that were wrong or crashed in some row."""
        args = (problem.key, device.key)
        found = self._file.fetch(schema.BARRED_SQL, args, schema.MOST_MEASUREMENTS, "failed configs of a problem")
        return frozenset(self._cache.config(key) for (key,) in found)

    def counts(self) -> Counts:
        """How many measurements there are."""
        keys = self._file.fetch("SELECT id FROM protocol", (), schema.MOST_PROTOCOLS, "protocols")
        computed = ", ".join(str(key) for (key,) in keys if self._cache.protocol(key).clock == "model")
        found: Counter[tuple[int, bool]] = Counter()
        for _, device, count, modelled in self._file.pages(_SIZES.format(computed), 2, bulk=True):
            found[device, True] += modelled
            found[device, False] += count - modelled
        return found

    def digest(self) -> str:
        """The digest of the rows."""
        return f"{sum(map(fingerprint, self.all())) % 2**128:032x}"


class Records:
    """The contents of a packed table."""

    table = "record"

    def __init__(self, file: Handle, cache: RowCache) -> None:
        self._file, self._cache = file, cache

    def rows(self, problem: Problem, device: Device) -> list[Measurement]:
        """Raise TableError."""
        raise self._without_rows()

    def all(self) -> Iterator[Measurement]:
        """Raise TableError."""
        raise self._without_rows()

    def record(self, problem: Problem, device: Device) -> Record | None:
        """The record as it was packed."""
        found = self._file.fetch(schema.RECORD_SQL, (problem.key, device.key))
        same = found and self._cache.problem(problem.key).text == problem.text
        return self._cache.record(found[0][0], problem.key, device.key) if same else None

    def marked(self) -> Iterable[Sequence[int]]:
        """All keys: the mark is inside a record."""
        return self._file.pages(_RECORDS.replace(", data", ""), 2)

    def settled(self, problem: Problem, device: Device) -> bool:
        """True: nothing is written."""
        return True

    def barred(self, problem: Problem, device: Device) -> frozenset[Config]:
        """The configs that the record names as wrong or crashed."""
        found = self._file.fetch(schema.RECORD_SQL, (problem.key, device.key))
        return self._cache.banned(found[0][0], problem.key, device.key) if found else frozenset()

    def counts(self) -> Counts:
        """How many pooled times and failures there are."""
        found: Counter[tuple[int, bool]] = Counter()
        for _, device, data in self._file.pages(_RECORDS, 2):
            measured, modelled = self._cache.counts(data)
            found[device, False] += measured
            found[device, True] += modelled
        return found

    def digest(self) -> str:
        """The digest of all but the header."""
        with closing(connect_for_bulk(self._file.path)) as db:
            try:
                return packed_digest(db)
            except dbfile.FAULTS as error:
                raise dbfile.broken(self._file.path, error) from error

    def _without_rows(self) -> TableError:
        return TableError(
            f"{self._file.path} is packed: it holds pooled times and no measurements; use the table that it was packed"
            " from, or the archives"
        )


def summary(
    file: Handle, contents: Measurements | Records, devices: Iterable[Device], head: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """One JSON-ready entry per device, with what `head` says of the file."""
    found = Counter((device, op) for _, device, op in file.pages(_OPS.format(contents.table), 2, bulk=True))
    problems: dict[int, dict[str, int]] = defaultdict(dict)
    for (key, op), count in sorted(found.items(), key=lambda one: str(one[0][1])):
        problems[key][op] = count
    counts, entries = contents.counts(), []
    for device in devices:
        measured, computed = (counts.get((device.key, modelled), 0) for modelled in (False, True))
        entries.append({
            "path": str(file.path), "arch": device.arch, "device": device.sku, **head,
            "origin": "modelled" if computed and not measured else "measured",
            "problems": problems[device.key], "measurements": measured + computed,
        })  # fmt: skip
    return entries


def connect_for_bulk(path: Path) -> sqlite3.Connection:
    """A connection for statements that together read all of the file: they have one deadline, and values may be as long
    as a numbering. Raises TableError."""
    deadline = Deadline()
    db = dbfile.connect(path, deadline=deadline, longest=dbfile.MAX_NUMBERING_BYTES)
    deadline.begin(bulk_seconds(path))
    return db


def packed_digest(db: sqlite3.Connection) -> str:
    """The digest of everything that a packed table holds, apart from its header."""
    found = hashlib.blake2b(digest_size=16)
    for name, columns in _DIGESTED.items():
        found.update(f"{name}\n".encode())
        for row in ordered_rows(db, name, columns):
            found.update(f"{row!r}\n".encode(errors="surrogateescape"))
    return found.hexdigest()


def ordered_rows(db: sqlite3.Connection, name: str, columns: int) -> Iterator[tuple[Any, ...]]:
    """The rows of an SQL table in the order of its primary key, its first `columns`. Raises sqlite3.Error, also for
    rows that repeat."""
    rows = db.execute(f"SELECT * FROM {name} ORDER BY {', '.join(map(str, range(1, columns + 1)))}")

    def size() -> int:
        count, page = (int(db.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("page_count", "page_size"))
        return count * page

    return OnceInOrder(columns, size)(rows)
