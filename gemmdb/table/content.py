"""The digest of what a table holds, computed anew from all of it."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from gemmdb.table import dbfile, scanning
from gemmdb.table.reader import Table
from gemmdb.table.rows import fingerprint

COPIED = {"device": 1, "protocol": 1, "toolchain": 1, "run": 1, "verdict": 4}
"""The tables that packing copies as they are, with the number of columns of their primary keys."""
_PACKED = {"config": 1, "problem": 1, **COPIED, "record": 2, "numbering": 1}


def digest(table: Table) -> str:
    """The digest that the header of a table must name: 32 hexadecimal digits. Every row is read. Raises TableError."""
    if not table.packed:
        return f"{sum(map(fingerprint, table.measurements())) % 2**128:032x}"
    with closing(scanning.connect(table.path)) as db:
        try:
            return packed(db)
        except dbfile.FAULTS as error:
            raise dbfile.broken(table.path, error) from error


def packed(db: sqlite3.Connection) -> str:
    """The digest of everything that a packed table holds, apart from its header."""
    found = hashlib.blake2b(digest_size=16)
    for name, columns in _PACKED.items():
        found.update(f"{name}\n".encode())
        for row in ordered(db, name, columns):
            found.update(f"{row!r}\n".encode(errors="surrogateescape"))
    return found.hexdigest()


def ordered(db: sqlite3.Connection, name: str, columns: int) -> Iterator[tuple[Any, ...]]:
    """The rows of a table in the order of its primary key, which is its first `columns`. Raises sqlite3.Error; also
    for rows that repeat."""
    rows = db.execute(f"SELECT * FROM {name} ORDER BY {', '.join(map(str, range(1, columns + 1)))}")
    return scanning.Once(columns, lambda: _size(db))(rows)


def _size(db: sqlite3.Connection) -> int:
    """Bytes of the file."""
    count, size = (int(db.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("page_count", "page_size"))
    return count * size
