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
    for statement in schema.SCHEMA.values():
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


MIGRATIONS()(m001_initial)
