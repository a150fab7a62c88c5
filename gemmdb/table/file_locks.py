"""Locks between the processes that write one table, and the replacement of a table's file under such a lock.

With SQLite, the writer that polls at the right moment begins. Of two hundred writers, some never get a turn. The system
grants a file lock in order of arrival. So the first writer that finds another one at work creates a file `TABLE.turn`,
and from then on all writers lock it first.

SQLite finds a file's journal by the path. A writer that begins on a replaced file would take the journal of the new one
for its own, and delete it. So writers check the file and begin under a shared lock on the folder, and a merge replaces
the file under an exclusive one. Where the file system has no such locks, only the check is left.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gemmdb.rejected import Rejected

try:
    import fcntl
except ImportError:  # Windows: writers poll, and nobody can replace a file that is open.
    fcntl = None  # type: ignore[assignment]

FOLDER_TIMEOUT_S = 5.0  # How long to wait for the lock on a folder, which is held for as long as a check takes
_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.02  # Seconds between two attempts: the first pause, and the longest
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)

Identity = tuple[int, int] | None


def real(path: Path) -> str:
    """The path with its links resolved; unchanged if it cannot name a file."""
    try:
        return os.path.realpath(path)
    except ValueError:  # It holds a NUL.
        return str(path)


def identity(path: Path | int) -> Identity:
    """The device and the inode of the file at `path`, or of an open file; None if there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - an open file has no Path
    except (OSError, ValueError):  # The path holds a NUL.
        return None
    return found.st_dev, found.st_ino


def open_lock_file(path: str | Path, mode: int = 0o666, *, writable: bool = False) -> int:
    """A descriptor of the file at `path` that processes lock, which is made if it is missing. `mode`: its permissions,
    less the umask. A lock of bytes (`lockf`) needs a `writable` one, a lock of the file (`flock`) does not. Raises
    OSError, and ValueError for a path that holds a NUL.

    A link is not followed: in a folder that is shared, others can put one there."""
    access = os.O_RDWR if writable else os.O_RDONLY
    return os.open(path, access | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def unsupported(error: OSError) -> bool:
    """Whether an error of a lock says that the file system has none."""
    return error.errno in _UNSUPPORTED


def rejection(path: Path) -> Rejected | None:
    """Why the file system of `path` cannot lock files; None if it can, or if no file can be created there to try. On
    such a file system, for instance a network one mounted without locks, SQLite says that every file is locked. The
    table itself is not tried, because that would drop SQLite's locks on it."""
    if fcntl is None:
        return None
    try:
        with tempfile.TemporaryFile(dir=Path(real(path)).parent) as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return Rejected(os.strerror(error.errno or 0)) if unsupported(error) else None
    return None


def replace_file(path: Path, other: Path) -> None:
    """Put the file `other` at `path`. A link stays and leads to it, and it has the mode of the file that it replaces.
    Raises OSError."""
    target = Path(real(path))
    with _folder_lock(target, exclusive=True):
        with contextlib.suppress(FileNotFoundError):
            other.chmod(target.stat().st_mode & 0o7777)
        other.replace(target)


def in_turn(path: Path, seconds: float, act: Callable[[], bool]) -> bool:
    """What `act` returns when it is this process's turn to write. While it runs, no merge replaces the file at `path`.
    It must not wait: while other writers have the file, it raises what SQLite then says, and is called again for so
    many `seconds`. In between, a merge can replace the file."""
    until, pause = time.monotonic() + seconds, 0.0
    with contextlib.ExitStack() as stack:
        if queued := has_queue(path):
            stack.enter_context(queue(path, seconds))
        while True:
            try:
                with _folder_lock(path, exclusive=False):
                    return act()
            except sqlite3.OperationalError as error:
                busy = getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY")
                # On a file system without locks no writer has the file, and waiting does not help.
                if not busy or time.monotonic() > until or (not pause and rejection(path)):
                    raise
                if not pause and not queued:
                    stack.enter_context(queue(path, seconds))
            pause = min(max(2 * pause, _PAUSE_S), _LONGEST_PAUSE_S)
            time.sleep(pause)


@contextlib.contextmanager
def queue(path: Path, seconds: float) -> Iterator[None]:
    """Wait until this process is first in the queue of the table's writers, for at most `seconds`. A writer that times
    out, or cannot create the file, goes on as if it were its turn."""
    file = -1
    if fcntl is not None:
        with contextlib.suppress(OSError, ValueError):  # The path holds a NUL.
            file = open_lock_file(_queue_file(path))
    taken = file >= 0 and _lock(file, seconds)
    try:
        yield
    finally:
        if taken:
            _unlock(file)


def has_queue(path: Path) -> bool:
    """Whether there is a queue for the table at `path`."""
    return os.path.exists(_queue_file(path))  # noqa: PTH110  it answers for a path with a NUL, too


def _queue_file(path: Path) -> str:
    return f"{real(path)}.turn"


def _lock(file: int, seconds: float) -> bool:
    """Whether the lock was taken in time. If not, `file` is closed as soon as it is."""
    done, guard = threading.Event(), threading.Lock()
    late = False

    def wait() -> None:
        with contextlib.suppress(OSError):  # No locks there: then there is no queue.
            fcntl.flock(file, fcntl.LOCK_EX)
        with guard:
            done.set()
            if late:
                _unlock(file)

    threading.Thread(target=wait, daemon=True).start()
    try:
        done.wait(seconds)
    except BaseException:
        with guard:
            late = True
            if done.is_set():
                _unlock(file)
        raise
    with guard:
        late = not done.is_set()
    return not late


def _unlock(file: int) -> None:
    fcntl.flock(file, fcntl.LOCK_UN)  # A process that was forked meanwhile has the descriptor as well.
    os.close(file)


@contextlib.contextmanager
def _folder_lock(path: Path, exclusive: bool) -> Iterator[None]:
    folder, until = -1, time.monotonic() + FOLDER_TIMEOUT_S
    with contextlib.suppress(OSError):
        if fcntl is not None:
            folder = os.open(Path(real(path)).parent, os.O_RDONLY)
            while time.monotonic() < until:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(folder, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
                    break
                time.sleep(_PAUSE_S)
    try:
        yield
    finally:
        if folder >= 0:
            os.close(folder)
