"""Opens a table file for writing and migrates it to the current schema. Unknown schemas are rejected."""

from __future__ import annotations

import datetime
import os
import secrets
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

from gemmdb.errors import TableError
from gemmdb.table import dbfile, schema
from gemmdb.table.file_locks import real
from gemmdb.table.read_timeouts import bounded

if TYPE_CHECKING:
    from sqlite_utils import Database

_ZERO = "0" * 32


def m001_initial(db: sqlite3.Connection | Database) -> None:
    """Schema version 1: all tables, empty, at generation 0."""
    later = {name for names in schema.ADDED.values() for name in names}
    for name, statement in schema.SCHEMA.items():
        if name not in later:
            db.execute(statement)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    # `rows_digest` changes with every row. `digest` is its value at the last verdict refresh, and `generation_digest`
    # its value at the last change of the generation.
    meta = {
        "schema_version": "1", "uid": secrets.token_hex(8), "created": now, "updated": now, "rows_digest": _ZERO,
        "digest": _ZERO, "generation_digest": _ZERO, "generation": "0",
    }  # fmt: skip
    for pair in meta.items():
        db.execute("INSERT INTO meta VALUES (?, ?)", pair)
    db.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
    db.execute("PRAGMA user_version = 1")


def m002_records(db: sqlite3.Connection | Database) -> None:
    """Schema version 2: add the SQL tables for packed tables, empty."""
    for name in schema.ADDED[2]:
        db.execute(schema.SCHEMA[name])
    db.execute("UPDATE meta SET value = '2' WHERE name = 'schema_version'")
    db.execute("PRAGMA user_version = 2")


MIGRATIONS = (m001_initial, m002_records)
"""The migration to each schema version, from 1 on."""


def connect(path: Path) -> sqlite3.Connection:
    """Open the table at `path` for writing, migrated to the current schema. A missing table is created, with its
    directory. Raises TableError if it is not a table or cannot be written, and any SQLite error."""
    _check_target(path)
    dbfile.check_journal(path)
    # Absolute, so that `:memory:` is an ordinary file name.
    db = sqlite3.connect(path.absolute(), timeout=0, isolation_level=None, check_same_thread=False)
    try:
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, dbfile.MAX_VALUE_BYTES)
        db.execute("PRAGMA trusted_schema=OFF")
        with bounded(db):  # It reads the schema, which may be endless in a hostile file.
            logged = db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        if logged:
            raise dbfile.logged(path)
        # A transaction that spills pages to disk blocks readers until it ends.
        db.execute("PRAGMA cache_spill=OFF")
        _migrate(db, path)
    except BaseException:
        db.close()
        raise
    return db


def _migrate(db: sqlite3.Connection, path: Path) -> None:
    db.execute("BEGIN IMMEDIATE")
    try:
        with bounded(db):
            empty = db.execute("SELECT 1 FROM sqlite_master").fetchone() is None
            if not empty:
                schema.check(db, path)
            version = 0 if empty else schema.header(db, path).version
        if version < schema.SCHEMA_VERSION:
            _apply(db, version)
            schema.check(db, path)
        if schema.header(db, path).packed:
            raise TableError(f"{path} is packed, so it cannot be extended; pass the table that it was packed from")
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _apply(db: sqlite3.Connection, version: int) -> None:
    """Apply the migrations beyond a file's schema version, 0 for an empty file."""
    if version == 0:  # As in the first compile that stores a row, which must not wait for the import below.
        for step in MIGRATIONS:
            step(db)
        return
    from sqlite_utils import Database, Migrations  # Takes 0.25 s and more.

    migrations = Migrations("gemmdb")
    for step in MIGRATIONS[version:]:
        migrations()(step)
    migrations.apply(Database(db, execute_plugins=False, recursive_triggers=False))


def _check_target(path: Path) -> None:
    """Raise TableError for a path that cannot be written. SQLite would open it for reading and fail at the first write,
    after a build has taken its lock and chosen its measurements. The directory must be writable for the journal."""
    try:
        if path.is_dir():
            raise TableError(f"{path} is a directory, not a table; name a .db file in it")
        if path.exists() and not path.is_file():
            raise TableError(f"{path} is not a regular file; name a table to write")
    except OSError as error:
        raise TableError(f"{path} cannot be opened ({error.strerror}); check the permissions of its folder") from error
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TableError(f"{path}: its folder cannot be made ({error.strerror}); name another") from error
    target = Path(real(path))
    if target.parent.is_dir() and not os.access(target.parent, os.W_OK | os.X_OK):
        if os.statvfs(target.parent).f_flag & os.ST_RDONLY:
            why, remedy = "its folder is on a file system that is mounted read-only", "name a file elsewhere"
        else:
            why, remedy = "its directory is not writable", "check its permissions, or name another file"
        raise TableError(f"{path} cannot be written: {why}; {remedy}")
    if target.exists() and not os.access(target, os.W_OK):
        raise TableError(f"{path} cannot be written: it is read-only; check its permissions, or name another file")
