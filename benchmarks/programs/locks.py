"""Whose turn a GPU is to time: one process at a time."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold the lock of a GPU, which ends with the process. Only what times holds it: a compile of another process runs
    few kernels, and would keep all timings waiting for minutes."""
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
