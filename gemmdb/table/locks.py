"""Whether a folder has file locks at all. SQLite says of one without them that another process holds the lock."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

_ABSENT = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


def absent(error: OSError) -> bool:
    """Whether an error of a lock says that the file system has none."""
    return error.errno in _ABSENT


def missing(folder: Path) -> bool:
    """Whether files in `folder` cannot be locked, tried with a temporary one; False where none can be made. Locks of a
    table's own file would be lost by trying."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            if fcntl is not None:
                fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                fcntl.lockf(file, fcntl.LOCK_UN)
    except OSError as error:
        return absent(error)
    return False
