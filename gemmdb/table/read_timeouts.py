"""Timeouts for reading tables. A hostile file may make SQLite loop over the same pages forever."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gemmdb.errors import TableError
from gemmdb.table.file_locks import real, state

STATEMENT_S, BULK_S, BULK_S_PER_MIB = 2.0, 60.0, 2.0
"""CPU time limit of one statement in seconds: in a lookup, and in a full-table read, plus the increment per MiB of the
file. Lookups take microseconds."""
WALL_CLOCK_FACTOR = 30
"""Wall-clock limit as a multiple of the CPU time limit: the machine may be overloaded, or the disk slow."""
_STEPS = 1_000  # SQLite instructions between clock checks, about 50 microseconds
_slow_files: dict[str, tuple[object, str]] = {}
"""By path: the state of a file that took too long to read, and its error message."""


class Budget:
    """CPU time shared by the statements of one lookup or of one full-table read."""

    def __init__(self, seconds: float) -> None:
        self.left = seconds

    def spend(self, seconds: float) -> bool:
        """Subtract the seconds. Return False if the budget is exhausted."""
        self.left -= seconds
        return self.left >= 0


class Deadline:
    """Time limit of the current statement: CPU time of its thread, with a wall-clock limit as backstop. SQLite calls
    this repeatedly, but never during a short statement, nor while waiting for a writer. So both limits count from the
    first call."""

    def __init__(self) -> None:
        self._before = 0.0
        self.begin(BULK_S)

    def begin(self, seconds: float = STATEMENT_S, *, budget: Budget | None = None) -> None:
        """Start the limit for one statement: `seconds`, or what is left of a shared `budget`."""
        self._seconds, self._budget = seconds if budget is None else budget.left, budget
        self._until: tuple[float, float] | None = None

    def watch(self, db: sqlite3.Connection) -> None:
        """Enforce the limit on the statements of a connection."""
        db.set_progress_handler(self, _STEPS)

    def __call__(self) -> bool:
        computed, now = time.thread_time(), time.monotonic()
        if self._until is None:
            self._until = computed + self._seconds, now + self._seconds * WALL_CLOCK_FACTOR
        elif self._budget is not None and not self._budget.spend(computed - self._before):
            return True
        self._before = computed
        return computed > self._until[0] or now > self._until[1]


class NoDeadline(Deadline):
    """No time limit, for a file with a known digest: what a lookup finds must not depend on the machine's load."""

    def watch(self, db: sqlite3.Connection) -> None:
        """Enforce nothing."""


def bulk_seconds(path: Path) -> float:
    """Return the time limit in seconds for reading the whole file at `path`; 0 without a file."""
    try:
        return BULK_S + BULK_S_PER_MIB * path.stat().st_size / 2**20
    except (OSError, ValueError):
        return 0.0


@contextmanager
def bounded(db: sqlite3.Connection) -> Iterator[None]:
    """Apply one lookup statement's time limit to all statements of a connection inside the block."""
    deadline = Deadline()
    deadline.begin()
    deadline.watch(db)
    try:
        yield
    finally:
        db.set_progress_handler(None, 0)


def interrupted(error: BaseException | None) -> bool:
    """Return whether a statement exceeded its deadline."""
    return getattr(error, "sqlite_errorname", "") == "SQLITE_INTERRUPT"


def remember_slow(path: Path, why: str) -> None:
    """Remember that a file took too long to read, with its error message."""
    _slow_files[real(path)] = state(path), why


def refuse_slow(path: Path) -> None:
    """Raise TableError for a file that took too long and has not changed since. Otherwise every GEMM of a program would
    take as long."""
    known, why = _slow_files.get(real(path), (None, ""))
    if known is not None and known == state(path):
        raise TableError(why)
