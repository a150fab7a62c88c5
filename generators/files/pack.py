"""Packing of tables for serving: one record per problem and device replaces its measurements."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from gemmdb.errors import InputError, TableError
from gemmdb.generators.files.merge import replacement
from gemmdb.key.problem import Problem
from gemmdb.lookup.expected import with_expectations
from gemmdb.table import bulk_reading, dbfile, packed_records, schema
from gemmdb.table import record as records
from gemmdb.table.catalog import check_inputs
from gemmdb.table.measurement import one_line
from gemmdb.table.numbering import Numbering
from gemmdb.table.reader import Table
from gemmdb.table.record import Entry

PAGE = 8192
"""Page size in bytes. Records of a few hundred bytes fill pages of this size best."""

_CHUNK = 1_000
_RECORDS = "SELECT * FROM record WHERE (problem, device) > (?, ?) ORDER BY problem, device LIMIT ?"
_MOST_PENDING = 100_000
"""Bound on the pending count: a damaged index may be endless."""


@dataclass(frozen=True)
class Packed:
    """Result of packing: problems (on each device), their measurements, and their times, pooled over runs."""

    problems: int
    measurements: int
    times: int


def pack(path: Path, out: Path) -> Packed:
    """Write the packed form of the table at `path` to `out`, which is replaced. The same table gives the same bytes.

    Every verdict and every result of rung `near` is preserved. Raises TableError for a file that is not a table, is
    packed or has outdated verdicts, InputError if it exceeds the limits of a packed table.
    """
    with replacement(out) as part:
        check_inputs(out, [path])
        try:
            with contextlib.closing(Table.open(path)) as table, contextlib.closing(sqlite3.connect(part)) as db:
                return _write(table, db)
        except sqlite3.IntegrityError as error:  # Its content is invalid.
            raise dbfile.broken(path, error) from error
        except sqlite3.Error as error:
            raise TableError(f"{path} cannot be packed to {out} ({one_line(str(error))}); check the folder") from error
        except InputError as error:
            raise InputError(f"{path}: {error}; pack a part of it: `gemmdb tables pack` takes any table") from error


def _write(table: Table, db: sqlite3.Connection) -> Packed:
    if table.packed:
        raise TableError(f"{table.path} is packed already; name the table that it was packed from")
    before = table.state()
    db.execute(f"PRAGMA page_size = {PAGE}")
    db.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {schema.SCHEMA_VERSION}")
    with contextlib.closing(bulk_reading.connect(table.path)) as connection, db:
        source = _Source(table.path, connection)
        source.check_verdicts()
        for statement in schema.SCHEMA.values():
            db.execute(statement)
        for name, columns in bulk_reading.COPIED.items():
            _insert(db, name, source.rows(name, columns))
        done = _write_records(table, source, db)
        digest = bulk_reading.packed_digest(db)
        meta = {
            "digest": digest, "generation": str(table.generation), "generation_digest": digest, "packed": "1",
            "rows_digest": digest, "schema_version": str(schema.SCHEMA_VERSION), "source": table.digest,
            "uid": digest[:16],
        }  # fmt: skip
        _insert(db, "meta", sorted(meta.items()))
    if table.state() != before:
        raise TableError(f"{table.path} changed while it was packed; try again when its writer is done")
    db.execute("VACUUM")
    return done


def _write_records(table: Table, source: _Source, db: sqlite3.Connection) -> Packed:
    """Write records with draft numbers, since the final ones depend on all records, so that only one record is in
    memory at a time."""
    entries: dict[Entry, int] = {}
    classes: dict[str, int] = {}
    done = Packed(0, 0, 0)
    for (problem, device), group in groupby(table.measurements(), key=lambda row: (row.problem, row.device)):
        rows = list(group)
        one = with_expectations(records.record(rows), problem, device)
        data = packed_records.pack(
            one,
            lambda entry: entries.setdefault(entry, len(entries)),
            lambda name: classes.setdefault(name, len(classes)),
        )
        db.execute("INSERT INTO record VALUES (?, ?, ?)", (problem.key, device.key, data))
        times = sum(len(kind.times) for kind in one.groups)
        done = Packed(done.problems + 1, done.measurements + len(rows), done.times + times)
    texts = list(source.texts("config"))
    families = {one.family for one, _ in source.problems()}
    numbering = Numbering.of(entries, classes, (text for _, text, *_ in texts), families)
    _insert(db, "numbering", sorted(numbering.parts().items()))
    short, shorter = numbering.short(), numbering.short_problem()
    _insert(db, "config", ((key, short(text)) for key, text, *_ in texts))
    _insert(db, "problem", ((one.key, shorter(one), *rest) for one, rest in source.problems()))
    _number(db, list(entries), list(classes), numbering)
    return done


class _Source:
    """The source table, accessed directly. SQLite errors become TableErrors."""

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self._path, self._db = path, db

    def check_verdicts(self) -> None:
        """Raise TableError if problems have outdated verdicts. Counts at most _MOST_PENDING."""
        sql = f"SELECT count(*) FROM (SELECT 1 FROM pending LIMIT {_MOST_PENDING})"
        with self._faults():
            (pending,) = self._db.execute(sql).fetchone()
        if pending:
            remedy = f"update them with `gemmdb merge {self._path} --out {self._path}`"
            raise TableError(f"{self._path} has outdated verdicts on {pending} problems; {remedy}")

    def rows(self, name: str, columns: int) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of an SQL table in the order of its primary key, its first `columns`."""
        with self._faults():
            yield from bulk_reading.ordered_rows(self._db, name, columns)

    def texts(self, name: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of an SQL table whose columns start with a key and a text."""
        for row in self.rows(name, 1):
            if not isinstance(row[1], str):
                raise dbfile.broken(self._path, ValueError(f"{name} {row[0]} is no text"))
            yield row

    def problems(self) -> Iterator[tuple[Problem, list[Any]]]:
        """Yield the problems in key order, each with its columns after the text."""
        for key, text, *rest in self.texts("problem"):
            try:
                found = Problem.parse(text)
            except InputError as error:
                fault = ValueError(f"problem {key} is not usable: {error}")
                raise dbfile.broken(self._path, fault) from error
            yield found, rest

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except dbfile.FAULTS as error:
            raise dbfile.broken(self._path, error) from error


def _number(db: sqlite3.Connection, entries: list[Entry], classes: list[str], numbering: Numbering) -> None:
    """Replace draft numbers, which are indices into `entries` and `classes`, by the final ones."""
    number, places = numbering.number(), {name: place for place, name in enumerate(numbering.classes)}
    last = (-(2**63), -(2**63))
    while found := db.execute(_RECORDS, (*last, _CHUNK)).fetchall():
        changed = []
        for problem, device, data in found:
            one = packed_records.unpack(data, entries.__getitem__, classes)
            packed = packed_records.pack(one, number, places.__getitem__)
            changed.append((packed_records.sealed(packed, problem, device), problem, device))
        db.executemany("UPDATE record SET data = ? WHERE problem = ? AND device = ?", changed)
        last = found[-1][:2]


def _insert(db: sqlite3.Connection, name: str, rows: Iterable[tuple[Any, ...]]) -> None:
    rows = iter(rows)
    if (first := next(rows, None)) is not None:
        db.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(first))})", chain([first], rows))
