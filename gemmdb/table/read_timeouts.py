"""Time limits of reading a table. A hostile file may make SQLite walk through the same pages without an end."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gemmdb.errors import TableError
from gemmdb.table.file_locks import real

STATEMENT_S, BULK_S, BULK_S_PER_MIB = 2.0, 60.0, 2.0
"""How long one statement may compute: one of a lookup, and one that reads all of a table, which gets more for each MiB
of the file. Lookups take microseconds."""
WALL_CLOCK_FACTOR = 30
"""How many times as long it may take by the clock: the machine may be overloaded, or the disk slow."""
_STEPS = 1_000  # Instructions of SQLite between two looks at the clock, about 50 microseconds
_slow_files: dict[str, tuple[object, str]] = {}
"""By path: the state of a file that took too long to read, and its error message."""


class Budget:
    """The processor time that several statements share: those of one lookup, or those that read all of a table."""

    def __init__(self, seconds: float) -> None:
        self.left = seconds

    def spend(self, seconds: float) -> bool:
        """Take so many seconds. False when there are not as many left."""
        self.left -= seconds
        return self.left >= 0


class Deadline:
    """When the statement in progress is to end: by the processor time of its thread, and at the latest by the clock.
    SQLite calls this again and again, but never during a short statement, and not while it waits for a writer. So both
    run from the first call."""

    def __init__(self) -> None:
        self._before = 0.0
        self.begin(BULK_S)

    def begin(self, seconds: float = STATEMENT_S, *, budget: Budget | None = None) -> None:
        """A statement begins, which may run for so long, or for as long as the `budget` of several still lasts."""
        self._seconds, self._budget = seconds if budget is None else budget.left, budget
        self._until: tuple[float, float] | None = None

    def watch(self, db: sqlite3.Connection) -> None:
        """End the statements of a connection in time."""
        db.set_progress_handler(self, _STEPS)

    def __call__(self) -> bool:
        computed, now = time.thread_time(), time.monotonic()
        if self._until is None:
            self._until = computed + self._seconds, now + self._seconds * WALL_CLOCK_FACTOR
        elif self._budget is not None and not self._budget.spend(computed - self._before):
            return True
        self._before = computed
        return computed > self._until[0] or now > self._until[1]


def bulk_seconds(path: Path) -> float:
    """How long it may take to read all of the file at `path`. 0 without a file."""
    try:
        return BULK_S + BULK_S_PER_MIB * path.stat().st_size / 2**20
    except (OSError, ValueError):
        return 0.0


@contextmanager
def bounded(db: sqlite3.Connection) -> Iterator[None]:
    """Inside, the statements of a connection that has no deadline end together as soon as one of a lookup would."""
    deadline = Deadline()
    deadline.begin()
    deadline.watch(db)
    try:
        yield
    finally:
        db.set_progress_handler(None, 0)


def interrupted(error: BaseException | None) -> bool:
    """Whether a statement passed its deadline."""
    return getattr(error, "sqlite_errorname", "") == "SQLITE_INTERRUPT"


def remember_slow(path: Path, why: str) -> None:
    """Note that a file took too long to read, and the error message."""
    _slow_files[real(path)] = _state(path), why


def refuse_slow(path: Path) -> None:
    """Raise TableError for a file that took too long and has not changed since: each GEMM of a program would take as
    long."""
    state, why = _slow_files.get(real(path), (None, ""))
    if state is not None and state == _state(path):
        raise TableError(why)


def _state(path: Path) -> object:
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
