"""Handle: a connection to one table file, shared by all threads of a process and reopened after a fork."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from gemmdb.errors import TableError
from gemmdb.table import dbfile, file_locks, read_timeouts, schema
from gemmdb.table.lookup_cache import LookupCache
from gemmdb.table.read_timeouts import (
    Budget,
    Deadline,
    NoDeadline,
    bulk_seconds,
    interrupted,
    refuse_slow,
    remember_slow,
)

T = TypeVar("T")
Row = tuple[Any, ...]

MOST_BYTES = 2**28
"""Maximum bytes that one statement may return. A page that links to itself turns a few bytes into long values."""
_ROW_BYTES = 200  # Approximate bytes of a row in memory, excluding its texts
_PART = 1_000  # Rows fetched between size checks

_locks: dict[str, threading.RLock] = {}
"""One lock per file. A writer waits until no process reads. Within one process, SQLite lets a second connection start
reading while a writer waits, so two threads with overlapping reads could starve the writer. The lock is reentrant: a
signal handler may run a lookup during a lookup."""
_handles: weakref.WeakSet[Handle] = weakref.WeakSet()
_taken: list[threading.RLock] = []
_inherited: list[sqlite3.Connection] = []
"""Connections inherited through a fork. SQLite forbids using them here, even to close them."""


class Handle:
    """A table file that is open for reading, or opens at the next read. `immutable`: no process writes the file.
    `pinned`: `check` compares its digest with a known one, so its statements have no time limit. `db`:
    the connection, None while the file is closed; hold `lock` to use it, and set `busy` meanwhile: SQLite does not
    allow a second statement while it calls the deadline of the first. `replaced`: called with the header when the file
    reopens with a different one; it must not read the file. `check`: called before the file is opened, and raises
    TableError if it may not be used. `cache`: rows that lookups read from the open file; None where changes to the file
    cannot be detected. Every method raises TableError on a bad file."""

    def __init__(
        self,
        path: Path,
        immutable: bool,
        replaced: weakref.WeakMethod[Callable[[schema.Header], None]],
        check: Callable[[], None] | None = None,
        pinned: bool = False,
    ) -> None:
        self.path, self.immutable, self._check = path, immutable, check
        self._replaced = replaced  # Weak, so that the connection closes with the last reference to its table.
        self._head: schema.Header | None = None
        self.lock = _lock_of(path)
        self.db: sqlite3.Connection | None = None
        self.cache: LookupCache | None = None
        self.busy = False
        self.deadline = NoDeadline() if pinned else Deadline()
        self._lookups = threading.local()
        self._file: file_locks.Identity = None
        _handles.add(self)

    @contextmanager
    def lookup(self) -> Iterator[None]:
        """Share one statement's time budget among all statements of this thread inside the block."""
        before = getattr(self._lookups, "now", None)
        self._lookups.now = before or Budget(read_timeouts.STATEMENT_S)
        try:
            yield
        finally:
            self._lookups.now = before

    def fetch(
        self, sql: str, args: Sequence[Any] = (), most: int | None = None, what: str = "", budget: Budget | None = None
    ) -> list[Row]:
        """Return the rows of a query. A hostile file may contain any number; more than `most` raises TableError, which
        names the rows `what`. `budget`: shared with the other queries of a full-table read."""

        def read(db: sqlite3.Connection) -> list[Row]:
            if sql is not schema.NUMBERING_SQL:
                return _bounded(db.execute(sql, args), most)
            db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, dbfile.MAX_NUMBERING_BYTES)
            try:
                return db.execute(sql).fetchall()
            finally:
                db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, dbfile.MAX_VALUE_BYTES)

        found = self._read(read, budget)
        if most is not None and len(found) > most:
            raise self.crowded(most, what)
        return found

    def pages(self, sql: str, columns: int, bulk: bool = False) -> Iterator[Row]:
        """Yield all rows of a paged query, whose key is its first `columns`. No writer waits for a slow consumer.
        `bulk`: each row aggregates many in the file, so a page may take long."""
        budget = Budget(bulk_seconds(self.path)) if bulk else None
        once = OnceInOrder(columns, lambda: self.path.stat().st_size)
        last: Row = (-(2**63),) * columns
        while found := self.fetch(sql, last, budget=budget):
            try:
                yield from once(found)
            except (sqlite3.DatabaseError, OSError) as error:
                raise dbfile.broken(self.path, error) from error
            last = found[-1][:columns]

    def crowded(self, most: int, what: str) -> TableError:
        """Return the TableError for a file with more than `most` of `what`."""
        return TableError(f"{self.path} has more than {most:,} {what}, the limit for one lookup; rebuild it")

    def ensure(self) -> None:
        """Open the file if it is closed. Call it before a choice that depends on whether the file is packed: another
        one may be at the path now."""
        if self.db is None:
            self._read(lambda db: None)

    def header(self) -> schema.Header:
        """Return the file's header."""
        return self._read(lambda db: schema.header(db, self.path))

    def connect(self) -> sqlite3.Connection:
        """Open the file, or reopen it after `close` or a fork. The caller holds the lock."""
        refuse_slow(self.path)
        if self._check:
            self._check()
        self._file = file_locks.identity(self.path)
        cache = LookupCache(self.path, self.immutable)
        try:
            db = dbfile.connect(self.path, self.immutable, self.deadline)
        except TableError as error:
            if interrupted(error.__cause__):
                remember_slow(self.path, str(error))
            raise
        try:
            head = schema.header(db, self.path)
        except BaseException:
            db.close()
            raise
        before, self._head = self._head, head
        replaced = self._replaced()
        if before not in (None, head) and replaced is not None:
            replaced(head)
        self.db, self.cache = db, cache if cache.watches_path() else None
        return db

    def moved(self, failed: sqlite3.Connection | None) -> bool:
        """Return whether another file has replaced the one that the `failed` connection opened. If so, close it; the
        next read opens the new one. SQLite mistakes the new file's journal for the old file's."""
        with self.lock:
            if self.db is not failed:  # Another thread noticed it first.
                return True
            if file_locks.identity(self.path) in (None, self._file):
                return False
        self.close()
        return True

    def broken(self, error: Exception) -> TableError:
        """Return the TableError for an error from SQLite. Files that took too long are remembered."""
        found = dbfile.broken(self.path, error)
        if interrupted(error):
            remember_slow(self.path, str(found))
            self.close()
        return found

    def close(self) -> None:
        """Close the file. Idempotent; a later `fetch` reopens it."""
        with self.lock:
            if self.db is not None:
                self.db.close()
            self.db = self.cache = None

    def _read(self, read: Callable[[sqlite3.Connection], T], budget: Budget | None = None) -> T:
        budget = budget or getattr(self._lookups, "now", None)
        while True:
            db = None
            try:
                with self.lock:
                    if self.busy:
                        return self._read_beside(read, budget)
                    self.busy = True
                    try:
                        db = self.db or self.connect()
                        self.deadline.begin(budget=budget)
                        return read(db)
                    finally:
                        self.busy = False
            except dbfile.FAULTS as error:
                if not self.moved(db):
                    raise self.broken(error) from error

    def _read_beside(self, read: Callable[[sqlite3.Connection], T], budget: Budget | None) -> T:
        """Like `_read`, on another connection: a signal handler runs a lookup while this thread reads."""
        deadline = type(self.deadline)()
        if self._check:
            self._check()
        with closing(dbfile.connect(self.path, self.immutable, deadline)) as db:
            deadline.begin(budget=budget)
            return read(db)


class OnceInOrder:
    """Passes through rows ordered by their first `columns`. Raises sqlite3.DatabaseError for a row out of order, and
    when all texts together are longer than the file; `size` returns the file's bytes.

    Pages of a hostile file may share children, and values may share their ends. Such a file of a few KiB can expand to
    an unlimited number of rows or amount of text. Ordering by key catches the first repeated row.
    """

    def __init__(self, columns: int, size: Callable[[], int]) -> None:
        self._columns, self._size = columns, size
        self._last: Row | None = None
        self._read = self._most = 0

    def __call__(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the rows, which continue those of the last call."""
        for row in rows:
            key = row[: self._columns]
            try:
                ordered = self._last is None or key > self._last
            except TypeError:  # A hostile file may contain other types.
                ordered = False
            if not ordered:
                raise sqlite3.DatabaseError("its rows repeat, or are not in the order of their keys")
            self._last = key
            self._read += sum(len(value) for value in row if isinstance(value, (str, bytes)))
            if self._read > self._most:
                self._most = max(self._most, self._size())  # A table may grow while it is read.
                if self._read > self._most:
                    raise sqlite3.DatabaseError("its values together are longer than the file")
            yield row


def _bounded(cursor: sqlite3.Cursor, most: int | None = None) -> list[Row]:
    """Return all rows, or stop once there are more than `most`. Raises MemoryError if they are too large together."""
    found: list[Row] = []
    left = MOST_BYTES
    while (most is None or len(found) <= most) and (part := cursor.fetchmany(_PART)):
        found += part
        left -= _ROW_BYTES * len(part) + sum(len(one) for row in part for one in row if isinstance(one, (str, bytes)))
        if left < 0:
            raise MemoryError
    return found


def _lock_of(path: Path) -> threading.RLock:
    return _locks.setdefault(file_locks.real(path), threading.RLock())


def _before_fork() -> None:
    """Wait for reads in flight. A child would inherit SQLite's mutexes in their current state, and the record that this
    process holds file locks: it could then neither take real locks nor write."""
    for lock in list(_locks.values()):
        lock.acquire()
        _taken.append(lock)


def _in_parent() -> None:
    while _taken:
        _taken.pop().release()


def _in_child() -> None:
    """Leave the parent's connections alone, and reopen the files on next use."""
    _taken.clear()
    _locks.clear()
    for handle in _handles:
        if handle.db is not None:
            _inherited.append(handle.db)
        handle.db, handle.cache, handle.busy = None, None, False
        handle.lock = _lock_of(handle.path)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
