"""The steps that bring a table file to the current schema. The writer applies the missing ones in order.

A reader never migrates: it refuses a schema that it does not know.
"""

from __future__ import annotations

import datetime
import secrets

from sqlite_utils import Database, Migrations

from gemmdb.table import schema

MIGRATIONS = Migrations("gemmdb")

_ZERO = "0" * 32


def m001_initial(db: Database) -> None:
    """Schema version 1: everything, empty, of generation 0."""
    later = {name for names in schema.ADDED.values() for name in names}
    for name, statement in schema.SCHEMA.items():
        if name not in later:
            db.execute(statement)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    meta = {
        "schema_version": "1",
        "uid": secrets.token_hex(8),
        "created": now,
        "updated": now,
        # `rows_digest` changes with every row. `digest` is its value when the verdicts were last derived, and
        # `generation_digest` its value when the generation was last raised.
        "rows_digest": _ZERO,
        "digest": _ZERO,
        "generation_digest": _ZERO,
        "generation": "0",
    }
    db.conn.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
    db.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
    db.execute("PRAGMA user_version = 1")


def m002_records(db: Database) -> None:
    """Schema version 2: the tables of packed tables, empty here."""
    for name in schema.ADDED[2]:
        db.execute(schema.SCHEMA[name])
    db.execute("UPDATE meta SET value = '2' WHERE name = 'schema_version'")
    db.execute("PRAGMA user_version = 2")


for _step in (m001_initial, m002_records):
    MIGRATIONS()(_step)
