"""Reading all rows of an SQL table: each once, in the order of its key, and no more than the file holds.

Pages of a hostile file may share children, or values their ends. Such a file of a few KiB holds more rows, or more
text, than anybody can read. In the order of the key, a row that comes again is seen at once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from gemmdb.table import dbfile
from gemmdb.table.handle import Handle
from gemmdb.table.read_timeouts import Budget, Deadline, bulk_seconds


class Once:
    """Passes on rows in the order of their first `columns`. Raises sqlite3.DatabaseError for a row that does not come
    after the one before, and when the texts of all are longer together than the file, whose bytes `size` tells."""

    def __init__(self, columns: int, size: Callable[[], int]) -> None:
        self._columns, self._size = columns, size
        self._last: tuple[Any, ...] | None = None
        self._read = self._most = 0

    def __call__(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """The rows, which go on where those of the last call ended."""
        for row in rows:
            key = row[: self._columns]
            if self._last is not None and not _after(key, self._last):
                raise sqlite3.DatabaseError("its rows repeat, or are not in the order of their keys")
            self._last = key
            self._read += sum(len(value) for value in row if isinstance(value, (str, bytes)))
            if self._read > self._most:
                self._most = max(self._most, self._size())  # A table may grow while it is read.
                if self._read > self._most:
                    raise sqlite3.DatabaseError("its values are longer together than the file")
            yield row


def connect(path: Path) -> sqlite3.Connection:
    """A connection for statements that together read all of the file: they have one deadline, and values may be as long
    as a numbering. Raises TableError."""
    deadline = Deadline()
    db = dbfile.connect(path, deadline=deadline, longest=dbfile.MAX_NUMBERING_BYTES)
    deadline.begin(bulk_seconds(path))
    return db


def pages(file: Handle, sql: str, columns: int, bulk: bool = False) -> Iterator[tuple[Any, ...]]:
    """All rows of a query that finds the next few rows behind the key of the last one, its first `columns`. No writer
    waits for a slow consumer. `bulk`: a row is computed of many in the file, so that the next few may take long.
    Raises TableError."""
    budget = Budget(bulk_seconds(file.path)) if bulk else None
    once = Once(columns, lambda: file.path.stat().st_size)
    last: tuple[Any, ...] = (-(2**63),) * columns
    while found := file.fetch(sql, last, budget):
        try:
            yield from once(found)
        except (sqlite3.DatabaseError, OSError) as error:
            raise dbfile.broken(file.path, error) from error
        last = found[-1][:columns]


def _after(key: tuple[Any, ...], last: tuple[Any, ...]) -> bool:
    try:
        return key > last
    except TypeError:  # A hostile file may hold other types.
        return False
