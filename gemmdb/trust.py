"""Which files may be used: SHA-256 digests of the shipped ones, and those that GEMMDB_TRUST names.

Digests, and no signatures: a file of digests can be signed and checked by whatever an organisation uses for that
already, and gemmdb needs no keys, no cryptography of its own and no further package. docs/security.md says more.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from gemmdb.errors import InputError
from gemmdb.files import read_bounded

MANIFEST = "manifest.json"
"""What describes the shipped files, beside them."""
MAX_BYTES = 2**24
"""Bytes of the largest manifest or file of digests."""
_LINE = re.compile(r"\\?([0-9a-f]{64})(?: [ *].*)?", re.DOTALL)
"""A backslash says that the name behind is escaped."""
_PIECE = 2**20


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_in_use(path: Path) -> str:
    """The same of a file that this process uses, perhaps through SQLite. One that stays as it is is read once per
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
    """A descriptor that stays open: to close it would drop the locks that SQLite has on the file for this process."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def shipped(folder: Path) -> Mapping[str, str]:
    """The digests that the manifest of a folder lists, by file name; empty without a manifest. Raises InputError for
    one that is malformed."""
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
    """The digests in a file, one per line as `sha256sum` prints them; `#` begins a comment. Raises InputError."""
    try:
        lines = read_bounded(path, MAX_BYTES).decode().split("\n")  # Names may hold what other lines end with.
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"GEMMDB_TRUST={path}: it cannot be read ({why}); make it with `sha256sum`") from error
    found = set()
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.rstrip())
        if match is None:
            raise InputError(f"{path}:{number}: not a line that `sha256sum` prints")
        found.add(match[1])
    return frozenset(found)
