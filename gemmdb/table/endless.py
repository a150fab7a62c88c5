"""Files that took too long to read. They are not read again until they change: each product of a program would take as
long."""

from __future__ import annotations

from pathlib import Path

from gemmdb.errors import TableError
from gemmdb.table import dbfile

_known: dict[str, tuple[object, str]] = {}
"""By path: the state of the file then, and what was said of it."""


def remember(path: Path, why: str) -> None:
    """Note that a file took too long, and what was said of it."""
    _known[dbfile.real(path)] = _state(path), why


def refuse(path: Path) -> None:
    """Raise TableError for a file that took too long and has not changed since."""
    state, why = _known.get(dbfile.real(path), (None, ""))
    if state is not None and state == _state(path):
        raise TableError(why)


def _state(path: Path) -> object:
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
