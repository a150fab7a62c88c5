"""Files that processes lock to take turns, and whether a folder's file system has such locks.

SQLite says that a file is locked also where the file system refuses every lock, as network file systems do that are
mounted without them.
"""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has locks of its own, on every file system.
    fcntl = None  # type: ignore[assignment]

_REFUSALS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


def opened(path: str | Path, mode: int = 0o666, *, writable: bool = False) -> int:
    """A descriptor of the file at `path` that processes lock, which is made if it is missing. `mode`: its permissions,
    less the umask. A lock of bytes (`lockf`) needs a `writable` one, a lock of the file (`flock`) does not. Raises
    OSError, and ValueError for a path that holds a NUL.

    A link is not followed: in a folder that is shared, others can put one there."""
    access = os.O_RDWR if writable else os.O_RDONLY
    return os.open(path, access | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def absent(error: OSError) -> bool:
    """Whether an error of a lock says that the file system has none."""
    return error.errno in _REFUSALS


def refused(folder: Path) -> str:
    """What the system says when a file of `folder` is locked that nobody else has. Empty if that works, or if no file
    can be made there. Locks of a table's own file would be lost by trying."""
    if fcntl is None:
        return ""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return os.strerror(error.errno or 0) if absent(error) else ""
    return ""
