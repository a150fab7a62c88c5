"""Locks between processes that write one table, and file replacement under such a lock.

With SQLite alone, whichever writer polls at the right moment goes next, and with two hundred writers some starve. The
OS grants file locks in order of arrival. So the first writer that finds the table busy creates a file `TABLE.turn`, and
from then on all writers lock it first.

SQLite finds a file's journal by path. A writer that begins on a replaced file would mistake the new file's journal for
its own and delete it. So writers check the file and begin under a shared lock on the directory, and a merge replaces
the file under an exclusive one. On file systems without such locks, only the check remains.
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
except ImportError:  # Windows: writers poll, and an open file cannot be replaced.
    fcntl = None  # type: ignore[assignment]

FOLDER_TIMEOUT_S = 5.0  # Timeout for the directory lock, which is held only during a check
_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.02  # Seconds between attempts: the first and the longest pause
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)

Identity = tuple[int, int] | None


def real(path: Path) -> str:
    """Return the path with links resolved; unchanged if it is not a valid path."""
    try:
        return os.path.realpath(path)
    except ValueError:  # It holds a NUL.
        return str(path)


def identity(path: Path | int) -> Identity:
    """Return the device and inode of the file at `path`, or of an open file; None if it does not exist."""
    try:
        found = os.stat(path)  # noqa: PTH116 - an open file has no Path
    except (OSError, ValueError):  # The path holds a NUL.
        return None
    return found.st_dev, found.st_ino


def state(path: Path) -> object:
    """Return what changes when the file at `path` is replaced or written; None if it does not exist."""
    try:
        found = path.stat()
    except (OSError, ValueError):  # The path holds a NUL.
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def open_lock_file(path: str | Path, mode: int = 0o666, *, writable: bool = False) -> int:
    """Open the lock file at `path`, creating it if missing. `mode`: its permissions, minus the umask. A byte-range lock
    (`lockf`) needs a `writable` descriptor, a whole-file lock (`flock`) does not. Raises OSError, and ValueError for a
    path that contains a NUL.

    Links are not followed: in a shared directory, other users could create one."""
    access = os.O_RDWR if writable else os.O_RDONLY
    return os.open(path, access | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def unsupported(error: OSError) -> bool:
    """Return whether a lock error means that the file system does not support locks."""
    return error.errno in _UNSUPPORTED


def rejection(path: Path) -> Rejected | None:
    """Return why the file system of `path` cannot lock files; None if it can, or if no file can be created there to
    try. On such a file system, for example a network mount without locks, SQLite reports every file as locked. The test
    does not use the table itself, because that would drop SQLite's locks on it."""
    if fcntl is None:
        return None
    try:
        with tempfile.TemporaryFile(dir=Path(real(path)).parent) as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return Rejected(os.strerror(error.errno or 0)) if unsupported(error) else None
    return None


def replace_file(path: Path, other: Path) -> None:
    """Replace the file at `path` with `other`. A link at `path` stays, and the new file keeps the old file's mode.
    Raises OSError."""
    target = Path(real(path))
    with _folder_lock(target, exclusive=True):
        with contextlib.suppress(FileNotFoundError):
            other.chmod(target.stat().st_mode & 0o7777)
        other.replace(target)


def in_turn(path: Path, seconds: float, act: Callable[[], bool]) -> bool:
    """Call `act` when it is this process's turn to write, and return its result. While it runs, no merge replaces the
    file at `path`. `act` must not block: while other writers hold the file, it raises SQLite's busy error and is
    retried for up to `seconds`. Between retries, a merge can replace the file."""
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
                # On a file system without locks no writer holds the file, and waiting does not help.
                if not busy or time.monotonic() > until or (not pause and rejection(path)):
                    raise
                if not pause and not queued:
                    stack.enter_context(queue(path, seconds))
            pause = min(max(2 * pause, _PAUSE_S), _LONGEST_PAUSE_S)
            time.sleep(pause)


@contextlib.contextmanager
def queue(path: Path, seconds: float) -> Iterator[None]:
    """Wait up to `seconds` until this process is first in the queue of the table's writers. A writer that times out, or
    cannot create the lock file, proceeds anyway."""
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
    """Return whether the table at `path` has a writer queue."""
    return os.path.exists(_queue_file(path))  # noqa: PTH110  it also handles a path with a NUL


def _queue_file(path: Path) -> str:
    return f"{real(path)}.turn"


def _lock(file: int, seconds: float) -> bool:
    """Return whether the lock was acquired in time. If not, `file` is closed once it is."""
    done, guard = threading.Event(), threading.Lock()
    late = False

    def wait() -> None:
        with contextlib.suppress(OSError):  # No locks there, so no queue.
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
    fcntl.flock(file, fcntl.LOCK_UN)  # A child forked in the meantime also has the descriptor.
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
