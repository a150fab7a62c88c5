"""Packing of tables for serving: one record per problem and device replaces its measurements."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from gemmdb.errors import InputError, TableError
from gemmdb.generators.files.merge import replacement
from gemmdb.kernels.config import Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.lookup.expected import with_expectations
from gemmdb.table import bulk_reading, dbfile, packed_records, schema
from gemmdb.table import record as records
from gemmdb.table.admission import check_inputs
from gemmdb.table.measurement import Measurement, one_line
from gemmdb.table.numbering import Numbering
from gemmdb.table.packed_records import Numbers, Stored
from gemmdb.table.reader import Table
from gemmdb.table.record import Entry, Record
from gemmdb.table.verdict import Verdict

PAGE = 8192
"""Page size in bytes. Records of a few hundred bytes fill pages of this size best."""

_CHUNK = 1_000
_DRAFT = "CREATE TEMP TABLE draft (id INTEGER PRIMARY KEY, problem TEXT, device INTEGER, states INTEGER, data BLOB)"
_RECORD = f"INSERT INTO record VALUES ({', '.join('?' * (schema.PLACE_COLUMNS + 2))})"
_MOST_PENDING = 100_000
"""Bound on the pending count: a damaged index may be endless."""


T = TypeVar("T")


@dataclass(frozen=True)
class Packed:
    """Result of packing: problems (on each device), their measurements, and their times, pooled over runs."""

    problems: int
    measurements: int
    times: int


class Answers(NamedTuple):
    """What a packed table has of a problem on a device, and the number of measurements behind it."""

    problem: Problem
    device: Device
    record: Record
    verdicts: Sequence[Verdict]
    measurements: int

    @classmethod
    def of(cls, rows: Sequence[Measurement], device: Device, verdicts: Sequence[Verdict]) -> Answers:
        """What all `rows` of a problem on a device give, with their `verdicts`. `device`: with its figures."""
        problem = rows[0].problem
        return cls(problem, device, with_expectations(records.record(rows), problem, device), verdicts, len(rows))


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
    with contextlib.closing(bulk_reading.connect(table.path)) as connection:
        source = _Source(table.path, connection)
        source.check_verdicts()
        done = write(db, _answers(table), source.rows, table.generation, table.digest)
    if table.state() != before:
        raise TableError(f"{table.path} changed while it was packed; try again when its writer is done")
    return done


def write(
    db: sqlite3.Connection,
    answers: Iterable[Answers],
    rows: Callable[[str, int], Iterable[tuple[Any, ...]]],
    generation: int,
    source: str,
) -> Packed:
    """Write a packed table to an empty database. `rows`: returns the rows of an SQL table in the order of its first
    columns, whose number is given; `generation`, `source`: the generation and the digest of the table with the
    measurements. Raises InputError if it exceeds the limits of a packed table."""
    db.execute(f"PRAGMA page_size = {PAGE}")
    db.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {schema.PACKED_VERSION}")
    with db:
        for statement in schema.PACKED.values():
            db.execute(statement)
        for name, columns in bulk_reading.COPIED.items():
            _insert(db, name, rows(name, columns))
        done = _write_records(db, answers)
        digest = bulk_reading.packed_digest(db)
        meta = {
            "digest": digest, "generation": str(generation), "generation_digest": digest, "packed": "1",
            "rows_digest": digest, "schema_version": str(schema.PACKED_VERSION), "source": source,
            "uid": digest[:16],
        }  # fmt: skip
        _insert(db, "meta", sorted(meta.items()))
    db.execute("VACUUM")
    return done


def _answers(table: Table) -> Iterator[Answers]:
    for (problem, device), group in groupby(table.measurements(), key=lambda row: (row.problem, row.device)):
        yield Answers.of(list(group), device, table.verdicts(problem, device))


def _write_records(db: sqlite3.Connection, answers: Iterable[Answers]) -> Packed:
    """Write the records with draft numbers to a temporary table, since the final numbers depend on all records, so that
    only one record is in memory at a time."""
    drafts = _Drafts()
    done = Packed(0, 0, 0)
    db.execute(_DRAFT)
    for one in answers:
        states, data = packed_records.measured(one.verdicts), drafts.pack(one)
        db.execute("INSERT INTO draft VALUES (NULL, ?, ?, ?, ?)", (one.problem.text, one.device.key, states, data))
        times = sum(len(group.times) for group in one.record.groups)
        done = Packed(done.problems + 1, done.measurements + one.measurements, done.times + times)
    numbering = drafts.numbering()
    _insert(db, "numbering", sorted(numbering.parts().items()))
    _number(db, drafts, numbering)
    db.execute("DROP TABLE draft")
    return done


@dataclass(frozen=True)
class _Drafts:
    """The values that records refer to, numbered in the order of their first use."""

    entries: dict[Entry, int] = field(default_factory=dict)
    classes: dict[str, int] = field(default_factory=dict)
    contexts: dict[tuple[int, int], int] = field(default_factory=dict)
    configs: dict[Config, int] = field(default_factory=dict)
    families: set[str] = field(default_factory=set)
    stamps: dict[int, int] = field(default_factory=dict)

    def pack(self, one: Answers) -> bytes:
        """Return the record with draft numbers."""
        self.families.add(f"{one.problem.op} {one.problem.family}")
        if self.stamps.setdefault(one.device.key, one.record.stamp) != one.record.stamp:
            raise InputError("the expectations of a device have two stamps")
        numbers = Numbers(
            _numbered(self.entries), _numbered(self.classes), _numbered(self.contexts), _numbered(self.configs)
        )  # fmt: skip
        verdicts = sorted(one.verdicts, key=lambda verdict: (verdict.protocol.text, verdict.klass))
        return packed_records.pack(one.record, numbers, packed_records.numbered(verdicts, numbers))

    def numbering(self) -> Numbering:
        """Return the final numbering."""
        return Numbering.of(
            self.entries, self.classes, self.contexts, self.stamps.items(), self.configs, self.families
        )  # fmt: skip


def _numbered(known: dict[T, int]) -> Callable[[T], int]:
    return lambda value: known.setdefault(value, len(known))


def _number(db: sqlite3.Connection, drafts: _Drafts, numbering: Numbering) -> None:
    """Write the draft records with the final numbers."""
    entries, classes = list(drafts.entries), list(drafts.classes)
    contexts, configs = list(drafts.contexts), list(drafts.configs)
    numbers = Numbers.of(numbering)

    def final(one: Stored) -> Stored:
        ties = packed_records.tie_bytes(numbers.config(configs[tie]) for tie in packed_records.tie_numbers(one.ties))
        return one._replace(context=numbers.context(contexts[one.context]), ties=ties)

    last = 0
    while found := db.execute("SELECT * FROM draft WHERE id > ? ORDER BY id LIMIT ?", (last, _CHUNK)).fetchall():
        rows = []
        for last, text, device, states, data in found:  # noqa: B007 - the last one begins the next chunk
            problem, record = Problem.parse(text), packed_records.unpack(data, entries.__getitem__, classes)
            verdicts = list(map(final, packed_records.stored(data)))
            packed = packed_records.pack(record, numbers, verdicts, states)
            place = numbering.place(problem)
            assert place is not None
            rows.append((*place, numbering.device(device), problem.key,
                         packed_records.sealed(packed, problem.key, device)))  # fmt: skip
        db.executemany(_RECORD, rows)


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

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except dbfile.FAULTS as error:
            raise dbfile.broken(self._path, error) from error


def _insert(db: sqlite3.Connection, name: str, rows: Iterable[tuple[Any, ...]]) -> None:
    rows = iter(rows)
    if (first := next(rows, None)) is not None:
        db.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(first))})", chain([first], rows))
