"""A line in which writers of one table wait, so that each comes to its turn.

SQLite lets whoever asks at the right moment begin. Of two hundred writers that ask again and again, some never hit it.
The system keeps those that wait for one lock in the order in which they came. The line of a table is a file
`TABLE.turn`, which the first writer makes that finds another one at work. From then on all go there first.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from gemmdb.table import dbfile, locks

try:
    import fcntl
except ImportError:  # Windows: all ask again and again.
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def in_line(path: Path, seconds: float) -> Iterator[None]:
    """Wait until nobody is before this one in the line for the table at `path`, at most so many `seconds`. Whoever
    waited in vain, or cannot make the file, goes on as if it had come to its turn."""
    file = _open(path)
    taken = file >= 0 and _take(file, seconds)
    try:
        yield
    finally:
        if taken:
            _release(file)


def is_there(path: Path) -> bool:
    """Whether there is a line for the table at `path`."""
    return os.path.exists(_file(path))  # noqa: PTH110  it answers for a path with a NUL, too


def _file(path: Path) -> str:
    return f"{dbfile.real(path)}.turn"


def _open(path: Path) -> int:
    if fcntl is None:
        return -1
    try:
        return locks.opened(_file(path))
    except (OSError, ValueError):  # The path holds a NUL.
        return -1


def _take(file: int, seconds: float) -> bool:
    """Whether the lock was taken in time. If not, `file` is closed as soon as it is."""
    done, guard = threading.Event(), threading.Lock()
    late = False

    def wait() -> None:
        with contextlib.suppress(OSError):  # No locks there: then there is no line.
            fcntl.flock(file, fcntl.LOCK_EX)
        with guard:
            done.set()
            if late:
                _release(file)

    threading.Thread(target=wait, daemon=True).start()
    try:
        done.wait(seconds)
    except BaseException:
        with guard:
            late = True
            if done.is_set():
                _release(file)
        raise
    with guard:
        late = not done.is_set()
    return not late


def _release(file: int) -> None:
    fcntl.flock(file, fcntl.LOCK_UN)  # A process that was forked meanwhile has the descriptor as well.
    os.close(file)
