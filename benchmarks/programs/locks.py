"""Whose turn a GPU is: many processes may use it at once, or one alone may time."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def using(path: Path, alone: bool) -> Iterator[None]:
    """Hold the lock of a GPU, alone or with others that are not alone. Who comes first is first: a process that waits
    to be alone holds a second lock, behind which all later ones queue. Both end with the process."""
    with path.open("a") as lock:
        with path.with_suffix(".queue").open("a") as queue:
            fcntl.flock(queue, fcntl.LOCK_EX)
            fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
