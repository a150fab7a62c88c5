"""Opens a table file for reading. Files are untrusted: they are opened read-only and checked before use."""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from pathlib import Path

from gemmdb.errors import TableError
from gemmdb.settings import url_of
from gemmdb.table import file_locks, schema
from gemmdb.table.measurement import one_line
from gemmdb.table.read_timeouts import Deadline, interrupted

BUSY_S = 5.0  # Maximum wait of a reader for a writer's commit, which takes milliseconds
MAX_VALUE_BYTES, MAX_NUMBERING_BYTES = 2**16, 2**23
"""Maximum bytes of a value or row; the texts in a table are far shorter. The numbering of a packed table stores every
config and problem text in one value."""
FAULTS = (sqlite3.Error, UnicodeDecodeError, MemoryError)
"""Exceptions raised by reading a damaged file. SQLite's message may quote non-text bytes of the file."""

_PAUSES = (0.01, 0.05, 0.0)  # Seconds between attempts to open a file with an apparently unfinished write
_MAGIC = bytes.fromhex("d9d505f920a163d7")
_PRAGMAS = ("trusted_schema=OFF", "query_only=ON", "cell_size_check=ON")
"""SQLite recommends these for untrusted files. No memory mapping: truncating a mapped file kills the process."""
_CACHE = "cache_size=-65536"  # Set after the checks, because setting it reads the file


def connect(
    path: Path, immutable: bool = False, deadline: Deadline | None = None, longest: int = MAX_VALUE_BYTES
) -> sqlite3.Connection:
    """Open a read-only connection to the table at `path` and check its schema. Raises TableError, one line with the
    fix.

    `deadline`: applies to its statements; without one, only opening the file has a deadline. `longest`: maximum bytes
    of a value. `immutable`: no process writes the file, so SQLite takes no locks. Only SQLite opens the file: closing
    any other descriptor of it would drop the process's locks.
    """
    check_file(path)
    if not immutable:
        check_journal(path, writes=False)
    for pause in _PAUSES:
        try:
            db = _connect(path, immutable, deadline or Deadline())
            if deadline is None:
                db.set_progress_handler(None, 0)
            db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, longest)
            return db
        except FAULTS as error:
            # SQLite also reports a needed rollback briefly while a writer ends its transaction.
            unfinished = getattr(error, "sqlite_errorname", "").startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN"))
            if not pause or not unfinished:
                raise broken(path, error) from error
        time.sleep(pause)
    raise AssertionError("the last pause is 0")


def check_journal(path: Path, writes: bool = True) -> None:
    """Raise TableError for a rollback journal that no gemmdb writer left.

    When SQLite opens a file for writing (`writes`), it follows the file's journal and deletes the file that the journal
    names as its super-journal. A journal names one if it ends with the magic bytes.
    """
    journal = Path(f"{file_locks.real(path)}-journal")
    try:
        if not (strange := not stat.S_ISREG(journal.lstat().st_mode)) and writes:
            with journal.open("rb") as file:
                file.seek(-len(_MAGIC), os.SEEK_END)
                strange = file.read() == _MAGIC
    except OSError:
        return  # No journal, one that is too short, or one that SQLite cannot read either.
    if strange:
        raise TableError(f"{journal} was not written by gemmdb; do not use this file")


def broken(path: Path, error: Exception) -> TableError:
    """Return the TableError for an error from SQLite."""
    text = one_line(str(error))
    if getattr(error, "sqlite_errorname", "") == "SQLITE_READONLY_ROLLBACK":
        remedy = f"the same `gemmdb build` again, or `gemmdb merge {path} --out {path}`"
        return TableError(f"{path} has an unfinished write from a killed process; to undo it, run {remedy}")
    if interrupted(error):
        return TableError(f"{path} takes too long to read: it is damaged or malicious; do not use this file")
    if isinstance(error, MemoryError):
        return TableError(f"{path} needs more memory than there is: it is damaged or malicious; do not use this file")
    if ("locked" in text or "disk I/O" in text) and (rejected := file_locks.rejection(path)):
        remedy = "copy it to a local disk, or mount the file system with locks"
        return TableError(f"{path} is on a file system without file locks ({rejected.reason.lower()}); {remedy}")
    if "locked" in text:
        return TableError(f"{path} is locked by another process; try again when its writer is done")
    if "not a database" in text:
        return TableError(f"{path} is not a SQLite file; name a table that `gemmdb build` wrote")
    if "unable to open" in text or "readonly" in text:
        return TableError(f"{path} cannot be opened ({text}); check that it is still there, and its permissions")
    if "is full" in text or "disk I/O" in text:
        return TableError(f"{path} cannot be used ({text}); check the disk and its free space")
    return TableError(f"{path} is corrupted ({text}); restore it or rebuild it with `gemmdb build`")


def logged(path: Path) -> TableError:
    """Return the TableError for a file in WAL mode."""
    remedy = f"sqlite3 {path} 'PRAGMA journal_mode=DELETE'"
    return TableError(f"{path} has a write-ahead log, which tables never use; if the file is yours, run {remedy}")


def check_file(path: Path) -> None:
    """Raise TableError unless the path could be a table file."""
    try:
        found = path.stat()
    except FileNotFoundError as error:
        if url := url_of(path):
            raise TableError(f"{url} is a URL, not a file; download it, and pass the file") from error
        raise TableError(f"{path} does not exist; make it with `gemmdb build --out {path}`") from error
    except (OSError, ValueError) as error:
        raise TableError(f"{path} cannot be read ({error}); check the path and its permissions") from error
    if stat.S_ISDIR(found.st_mode):
        raise TableError(f"{path} is a directory, not a table; name a .db file in it")
    if not stat.S_ISREG(found.st_mode):
        raise TableError(f"{path} is not a regular file; name a table that `gemmdb build` wrote")
    if found.st_size == 0:
        raise TableError(f"{path} is empty; fill it with `gemmdb build --out {path}`")


def _connect(path: Path, immutable: bool, deadline: Deadline) -> sqlite3.Connection:
    options = "mode=ro&immutable=1" if immutable else "mode=ro"
    uri = f"{path.absolute().as_uri()}?{options}"
    db = sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        deadline.begin()
        deadline.watch(db)
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        for pragma in _PRAGMAS:
            db.execute(f"PRAGMA {pragma}")
        if not immutable:
            _check_mode(db, path)
        db.execute(f"PRAGMA {_CACHE}")
        schema.check(db, path)
        if path.stat().st_size % int(db.execute("PRAGMA page_size").fetchone()[0]):
            raise TableError(f"{path} is truncated; restore it or rebuild it with `gemmdb build`")
    except BaseException:
        db.close()
        raise
    return db


def _check_mode(db: sqlite3.Connection, path: Path) -> None:
    """Raise TableError for a file in WAL mode, before SQLite creates two files next to it to read it.

    In exclusive locking mode, SQLite locks the file before it opens a log. A read-only connection cannot take that
    lock, so the attempt fails if, and only if, there is a log to open.
    """
    db.execute("PRAGMA locking_mode=EXCLUSIVE")
    try:
        db.execute("PRAGMA schema_version").fetchone()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname == "SQLITE_IOERR_LOCK":
            raise logged(path) from error
        raise
    db.execute("PRAGMA locking_mode=NORMAL")  # The next statement releases the lock.
