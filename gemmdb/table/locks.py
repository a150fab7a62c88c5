"""Whether a folder's file system has the locks that writers of one table need to take turns.

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
