"""Which file lies at a path: a merge puts another one there, and a writer must not begin on the old one.

SQLite finds a file's journal by the path. A writer that begins on a replaced file would take the journal of the file
that lies there now for its own, and delete it. So writers look and begin under a shared lock on the folder, and a merge
replaces the file under an exclusive one. Where the file system has no such locks, only looking is left.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gemmdb.table import dbfile, locks, turns

try:
    import fcntl
except ImportError:  # Windows lets nobody replace a file that is open.
    fcntl = None  # type: ignore[assignment]

PATIENCE_S = 5.0
"""How long to wait for the lock, which nobody holds for longer than a look takes."""
_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.02
"""Seconds between two attempts: the first pause, and the longest."""

Identity = tuple[int, int] | None


def identity(path: Path) -> Identity:
    """The device and the inode of the file at `path`; None if there is none."""
    try:
        found = path.stat()
    except (OSError, ValueError):  # The path holds a NUL.
        return None
    return found.st_dev, found.st_ino


def in_turn(path: Path, seconds: float, act: Callable[[], bool]) -> bool:
    """What `act` returns when it is this process's turn. While it runs, no merge puts another file at `path`. It must
    not wait: while other writers have the file, it raises what SQLite then says, and is called again for so many
    `seconds`. In between, a merge can replace the file."""
    until, pause = time.monotonic() + seconds, 0.0
    with contextlib.ExitStack() as line:
        if waiting := turns.is_there(path):
            line.enter_context(turns.in_line(path, seconds))
        while True:
            try:
                with _locked(path, exclusive=False):
                    return act()
            except sqlite3.OperationalError as error:
                busy = getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY")
                if not busy or time.monotonic() > until:
                    raise
                if not pause:
                    if locks.refused(Path(dbfile.real(path)).parent):
                        raise  # No writer has the file: nobody can lock it, and waiting does not help.
                    if not waiting:
                        line.enter_context(turns.in_line(path, seconds))
            pause = min(max(2 * pause, _PAUSE_S), _LONGEST_PAUSE_S)
            time.sleep(pause)


def swap(path: Path, other: Path) -> None:
    """Put the file `other` at `path`. A link stays and leads to it, and it has the mode of the file that it replaces.
    Raises OSError."""
    target = Path(dbfile.real(path))
    with _locked(target, exclusive=True):
        with contextlib.suppress(FileNotFoundError):
            other.chmod(target.stat().st_mode & 0o7777)
        other.replace(target)


@contextlib.contextmanager
def _locked(path: Path, exclusive: bool) -> Iterator[None]:
    folder = -1
    with contextlib.suppress(OSError):
        if fcntl is not None:
            folder = os.open(Path(dbfile.real(path)).parent, os.O_RDONLY)
            _wait(folder, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
    try:
        yield
    finally:
        if folder >= 0:
            os.close(folder)


def _wait(folder: int, kind: int) -> None:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            fcntl.flock(folder, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE_S)
        else:
            return
