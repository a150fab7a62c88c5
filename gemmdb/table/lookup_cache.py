"""Rows that lookups have read of a file, kept as long as the file has not changed.

To read a file that others may write, SQLite locks it, looks for a journal and reads its header anew: eight calls of the
system. Whether the file has changed since takes one: every write moves the time of a file's last change. It moves in
steps of the system's clock, so two writes may have the same. Once a time has been seen for longer than such a step, the
next write has another one.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gemmdb.table.file_locks import Identity, identity

SETTLED_S = 2.5
"""For how long a time has to be seen. A step of the clocks of the file systems below takes 10 ms in general, and a
second where inodes are small, as those of an old ext4 may be."""
LOCAL = frozenset({"btrfs", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})
"""File systems that one host alone writes. What the system says of a file of another one may be seconds old."""
MOST_LOOKUPS = 2**15  # The most lookups whose rows are kept. When there are more, all are forgotten.

Key = tuple[int, int]  # The keys of a problem and a device
Rows = Sequence[tuple[Any, ...]]
_Stamp = tuple[int, int, int]


class LookupCache:
    """What lookups have read of one open file. Create it before the file is opened, and check `watches_path` after
    that. `immutable`: no process writes the file.

    The descriptor is one that cannot be read from (`O_PATH`): to close another one would drop SQLite's locks.
    """

    def __init__(self, path: Path, immutable: bool = False) -> None:
        self._path, self._immutable = path, immutable
        self._known: tuple[_Stamp | None, dict[Key, Rows]] = (None, {})
        self._file = -1 if immutable else _open(path)
        # While SQLite's write-ahead log exists, a commit does not touch the file itself. Our writers make none.
        self._log = f"{path}-wal"
        self._identity = identity(self._file)
        # Not `__del__`: at the end of the interpreter, what it calls may be gone before this object. The system closes
        # the descriptor then.
        self._release = weakref.finalize(self, _close, self._file, self._identity)
        self._release.atexit = False
        self._first: tuple[_Stamp | None, float] = (None, 0.0)
        if self._file >= 0 and _local(self._file):
            self._first = self._stamp(), time.monotonic()
        else:
            self.close()

    def watches_path(self) -> bool:
        """Whether the path still leads to the watched file, and changes to it can be detected."""
        here = identity(self._file)
        return self._immutable if self._file < 0 else here is not None and here == identity(self._path)

    def get(self, key: Key) -> Rows | None:
        """What was read for a key of the file as it is now; None if nothing was."""
        stamp, known = self._known
        rows = known.get(key)
        if rows is None or self._immutable or (self._stamp() == stamp and stamp is not None):
            return rows
        self._known = None, {}
        return None

    def place(self) -> dict[Key, Rows] | None:
        """Where to put what is read from now on, by its key; None until the time of the last change has been seen for
        long enough. Whether the file changes meanwhile need not be known: then `get` finds nothing there. After a
        change there is a new place, since another thread may still add to the old one what it read before."""
        stamp, known = self._known
        if stamp is None and not self._immutable:
            now, (first, since) = time.monotonic(), self._first
            if now - since < SETTLED_S:
                return None
            stamp = self._stamp()
            if stamp != first:
                self._first = stamp, now
                return None
            if stamp is None:
                return None
            known = {}
            self._known = stamp, known
        elif len(known) >= MOST_LOOKUPS:
            known.clear()
        return known

    def close(self) -> None:
        """Watch the file no more."""
        self._release()
        self._file = -1

    def _stamp(self) -> _Stamp | None:
        """None if a change may not show: somebody closed our descriptor, or a commit goes to a log."""
        try:
            found = os.fstat(self._file)
        except OSError:
            return None
        if (found.st_dev, found.st_ino) != self._identity or os.access(self._log, os.F_OK):
            return None
        return found.st_mtime_ns, found.st_ctime_ns, found.st_size


def file_system(about: str, mounts: str) -> str:
    """The name of an open file's file system, empty if it is unknown. `about`: the text of /proc/self/fdinfo/N;
    `mounts`: that of /proc/self/mountinfo."""
    fields = dict(line.split(":", 1) for line in about.splitlines() if ":" in line)
    mount = fields.get("mnt_id", "").strip()
    lines = (line for line in mounts.splitlines() if line.split(" ", 1)[0] == mount)
    return next((line.rpartition(" - ")[2].split(" ", 1)[0] for line in lines), "")


def _open(path: Path) -> int:
    if not hasattr(os, "O_PATH"):
        return -1
    try:
        return os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (OSError, ValueError):  # The path holds a NUL.
        return -1


def _close(file: int, before: Identity) -> None:
    if before is not None and identity(file) == before:  # Else it is somebody else's by now.
        os.close(file)


def _local(file: int) -> bool:
    try:
        about, mounts = (Path(f"/proc/self/{name}").read_text() for name in (f"fdinfo/{file}", "mountinfo"))
    except (OSError, ValueError):
        return False
    return file_system(about, mounts) in LOCAL
