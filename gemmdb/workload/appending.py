"""Appending lines to a file that other processes append to at the same time."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Append whole lines in one write under an exclusive lock, so that concurrent writers lose nothing; durable when it
    returns. Raises OSError."""
    data = "".join(f"{line}\n" for line in lines).encode()
    with path.open("ab") as file:
        if sys.platform != "win32":
            import fcntl

            # Released when the file is closed, also by a crash.
            fcntl.flock(file, fcntl.LOCK_EX)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
