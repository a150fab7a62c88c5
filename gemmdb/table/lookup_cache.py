"""Cached rows of lookups, valid as long as the file has not changed.

To read a file that others may write, SQLite locks it, looks for a journal and rereads its header: eight system calls.
Checking whether the file has changed takes one: every write updates the file's modification time. Timestamps have the
granularity of the system clock, so two writes may share one. Once a timestamp is older than that granularity, the next
write gets a new one.
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
"""Minimum age of a timestamp. On the file systems below the granularity is usually 10 ms, and one second with small
inodes, as on an old ext4."""
LOCAL = frozenset({"btrfs", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})
"""File systems with a single writing host. On others, file attributes may be seconds out of date."""
MOST_LOOKUPS = 2**15  # Maximum number of lookups with cached rows. The cache is cleared when full.

Key = tuple[int, int]  # The keys of a problem and a device
Rows = Sequence[tuple[Any, ...]]
_Stamp = tuple[int, int, int]


class LookupCache:
    """Rows that lookups have read from one open file. Create it before opening the file, and check `watches_path`
    afterwards. `immutable`: no process writes the file.

    It uses an `O_PATH` descriptor, which cannot be read from: closing a normal one would drop SQLite's locks.
    """

    def __init__(self, path: Path, immutable: bool = False) -> None:
        self._path, self._immutable = path, immutable
        self._known: tuple[_Stamp | None, dict[Key, Rows]] = (None, {})
        self._file = -1 if immutable else _open(path)
        # While SQLite's write-ahead log exists, commits do not touch the file itself. gemmdb's writers create none.
        self._log = f"{path}-wal"
        self._identity = identity(self._file)
        # Not `__del__`: at interpreter shutdown, the functions it calls may be gone before this object. The OS closes
        # the descriptor then.
        self._release = weakref.finalize(self, _close, self._file, self._identity)
        self._release.atexit = False
        self._first: tuple[_Stamp | None, float] = (None, 0.0)
        if self._file >= 0 and _local(self._file):
            self._first = self._stamp(), time.monotonic()
        else:
            self.close()

    def watches_path(self) -> bool:
        """Return whether the path still leads to the watched file, and changes to it can be detected."""
        here = identity(self._file)
        return self._immutable if self._file < 0 else here is not None and here == identity(self._path)

    def get(self, key: Key) -> Rows | None:
        """Return the cached rows for a key in the file's current state; None if there are none."""
        stamp, known = self._known
        rows = known.get(key)
        if rows is None or self._immutable or (self._stamp() == stamp and stamp is not None):
            return rows
        self._known = None, {}
        return None

    def place(self) -> dict[Key, Rows] | None:
        """Return the dict for newly read rows, by key; None until the modification time is old enough. The caller need
        not know whether the file changes in the meantime: `get` then ignores the dict. After a change there is a new
        dict, since another thread may still add old rows to the old one."""
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
        """Stop watching the file."""
        self._release()
        self._file = -1

    def _stamp(self) -> _Stamp | None:
        """Return None if a change may go undetected: our descriptor was closed, or a commit went to a log."""
        try:
            found = os.fstat(self._file)
        except OSError:
            return None
        if (found.st_dev, found.st_ino) != self._identity or os.access(self._log, os.F_OK):
            return None
        return found.st_mtime_ns, found.st_ctime_ns, found.st_size


def file_system(about: str, mounts: str) -> str:
    """Return the name of an open file's file system, empty if unknown. `about`: contents of /proc/self/fdinfo/N;
    `mounts`: contents of /proc/self/mountinfo."""
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
    if before is not None and identity(file) == before:  # Otherwise the number was reused.
        os.close(file)


def _local(file: int) -> bool:
    try:
        about, mounts = (Path(f"/proc/self/{name}").read_text() for name in (f"fdinfo/{file}", "mountinfo"))
    except (OSError, ValueError):
        return False
    return file_system(about, mounts) in LOCAL
