"""File helpers: bounded reads, appends from many processes, and atomic replacement."""

from __future__ import annotations

import codecs
import contextlib
import errno
import os
import secrets
import shutil
import sys
import tempfile
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


def is_page(beginning: bytes) -> bool:
    """Return whether a file is an HTML page, by its first bytes: one of `gemmdb report`, or what a browser saved in
    place of a file."""
    return beginning[:200].removeprefix(codecs.BOM_UTF8).lstrip().lower().startswith((b"<!doctype html", b"<html"))


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


def check_target(out: Path) -> None:
    """Raise InputError for a path that cannot become a file, before the work whose result it is to hold."""
    if out.is_dir():
        raise InputError(f"{out} is a folder; name a file")
    if _is_stream(out):
        writable = os.access(out, os.W_OK)
    else:
        check_folder(out)
        writable = can_replace(Path(os.path.realpath(out)))
    if not writable:
        raise InputError(f"{out} cannot be written (Permission denied); check its permissions, or name another")


def check_folder(out: Path) -> None:
    """Raise InputError for a file to write whose folder is missing: the name may be mistyped."""
    folder = Path(os.path.realpath(out)).parent
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; make it, or name another file")


def check_appendable(out: Path) -> None:
    """Raise InputError for a path to which no lines can be appended, before the work whose result it is to hold. Opens
    the file, which is made if it is missing and deleted again: permissions alone do not tell."""
    try:
        if out.is_dir():
            raise InputError(f"{out} is a folder; name a file")
        is_new = not out.exists()
        if not (is_new or out.is_file()):
            raise InputError(f"{out} is not a regular file; name another")
        with out.open("ab"):
            pass
        if is_new:
            Path(os.path.realpath(out)).unlink()
    except OSError as error:
        raise InputError(f"{out} cannot be written ({error.strerror}); {remedy(error)}") from error


def can_replace(target: Path) -> bool:
    """Return whether a file can be made at `target`, or replaced there, where no link is followed. Its folder must be
    writable, too: a file is replaced by another one of that folder."""
    return os.access(target.parent, os.W_OK | os.X_OK) and (not target.exists() or os.access(target, os.W_OK))


def _is_stream(out: Path) -> bool:
    """Return whether a path is a pipe, a device or `/dev/stdout`, which can be written but not replaced."""
    return out.exists() and (not out.is_file() or out.absolute().parent == Path("/dev"))


@contextlib.contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """Yield a temporary path. If the block succeeds, it replaces `out`, or the file that `out` links to; what cannot be
    replaced, a pipe, a device or `/dev/stdout`, is written instead. It is deleted otherwise. Raises InputError if `out`
    cannot be written."""
    check_target(out)
    target, is_stream = Path(os.path.realpath(out)), _is_stream(out)
    folder = Path(tempfile.gettempdir()) if is_stream else target.parent
    part = folder / f".{target.name}.{secrets.token_hex(4)}.part"
    try:
        yield part
        if is_stream:
            with part.open("rb") as read, out.open("wb") as written:
                shutil.copyfileobj(read, written)
        else:
            part.replace(target)
    except OSError as error:
        raise InputError(f"{out} cannot be written ({error.strerror}); {remedy(error)}") from error
    finally:
        part.unlink(missing_ok=True)


def remedy(error: OSError) -> str:
    """Return what to do about a file that cannot be read or written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space and run the same command again"
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return "check its folder, or name another"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "check its permissions, or name another"
    return "name another"
