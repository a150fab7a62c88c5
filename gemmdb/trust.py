"""Trusted files: the SHA-256 digests of shipped files, and those listed in GEMMDB_TRUST.

gemmdb uses digests rather than signatures: an organisation can sign and check a digest file with its existing tools,
and gemmdb needs no keys, no custom cryptography and no extra dependency. See docs/security.md.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from gemmdb.errors import InputError
from gemmdb.files import read_bounded

MANIFEST = "manifest.json"
"""The manifest next to the shipped files."""
MAX_BYTES = 2**24
"""Maximum size of a manifest or digest file in bytes."""
_LINE = re.compile(r"\\?([0-9a-f]{64})(?: [ *](.*))?", re.DOTALL)
"""A leading backslash means that the file name is escaped."""
_PIECE = 2**20


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_in_use(path: Path) -> str:
    """Return the SHA-256 of a file that this process may have open through SQLite. An unchanged file is read once per
    process. Raises OSError."""
    found = path.stat()
    return _sha256(str(path), found.st_ino, found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=256)
def _sha256(path: str, inode: int, modified: int, size: int) -> str:
    found, at = hashlib.sha256(), 0
    file = _opened(path, inode)
    while piece := os.pread(file, _PIECE, at):
        found.update(piece)
        at += len(piece)
    return found.hexdigest()


@functools.cache
def _opened(path: str, inode: int) -> int:
    """Return a descriptor that stays open: closing it would drop SQLite's locks on the file in this process."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def shipped(folder: Path) -> Mapping[str, str]:
    """Return the digests in a directory's manifest by file name; empty without a manifest. Raises InputError for a
    malformed manifest."""
    path = folder / MANIFEST
    try:
        text = read_bounded(path, MAX_BYTES)
    except FileNotFoundError:
        return {}
    try:
        found = json.loads(text)
        return {str(one["file"]): str(one["sha256"]) for one in (*found["tables"], *found.get("kernels", ()))}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path} is malformed; install gemmdb again") from error


def listed(path: Path) -> frozenset[str]:
    """Return the digests in a file of `sha256sum` lines; `#` starts a comment. Raises InputError."""
    return frozenset(digest for digest, _ in _lines(path, "GEMMDB_TRUST", "make it with `sha256sum`"))


def pinned(path: Path) -> Mapping[str, str]:
    """Return the digests in a file of `sha256sum` lines by file name, in its order. Raises InputError."""
    found = {}
    for digest, name in _lines(path, "GEMMDB_FROZEN", "`gemmdb freeze` makes it; 1 freezes without it"):
        if not name:
            raise InputError(f"{path}: the line of {digest[:12]}... names no file")
        if Path(name).name != name or name == "..":
            raise InputError(f"{path}: {name!r} is not the name of a file next to it: run `sha256sum` in that folder")
        found[name] = digest
    return found


def _lines(path: Path, variable: str, remedy: str) -> Iterator[tuple[str, str]]:
    """Yield (digest, file name) for each line."""
    try:
        lines = read_bounded(path, MAX_BYTES).decode().split("\n")  # File names may contain other line separators.
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{variable}={path}: it cannot be read ({why}); {remedy}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.rstrip())
        if match is None:
            raise InputError(f"{path}:{number}: not a line that `sha256sum` prints")
        yield match[1], match[2] or ""
