"""File helpers: bounded reads, appends from many processes, and atomic replacement."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from gemmdb.errors import InputError


def read_bounded(path: Path, limit: int) -> bytes:
    """Return the bytes of a file. Raises InputError if there are more than `limit`, and OSError."""
    with path.open("rb") as file:
        raw = file.read(limit + 1)
    if len(raw) > limit:
        raise InputError(f"{path} is larger than {limit:,} bytes")
    return raw


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Append whole lines in one write under an exclusive lock, so that concurrent writers lose nothing; durable on
    return. Raises OSError."""
    data = "".join(f"{line}\n" for line in lines).encode()
    with path.open("ab") as file:
        if sys.platform != "win32":
            import fcntl

            # Released when the file is closed, even by a crash.
            fcntl.flock(file, fcntl.LOCK_EX)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """Yield a temporary path beside `out`. It replaces `out` if the block succeeds, and is deleted otherwise. Raises
    InputError if it cannot be written."""
    folder = out.absolute().parent
    if out.is_dir():
        raise InputError(f"{out} is a folder; name a file")
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; make it, or name another file")
    part = folder / f".{out.name}.{secrets.token_hex(4)}.part"
    try:
        yield part
        part.replace(out)
    except OSError as error:
        raise InputError(f"{out} cannot be written ({error.strerror})") from error
    finally:
        part.unlink(missing_ok=True)
