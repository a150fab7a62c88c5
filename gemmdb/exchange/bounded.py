"""Bounded reads of untrusted files."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gemmdb.errors import InputError
from gemmdb.files import read_bounded
from gemmdb.table.measurement import one_line

MAX_LINE_BYTES = 2**20
"""Longest line accepted, in bytes. A line of our own exports takes about 2 kB."""
MAX_LINES = 20_000_000
"""Most lines accepted in one file."""
MAX_BYTES = 2**28
"""Largest file accepted that must be read as a whole, in bytes."""

_NUMBERS = {int: re.compile(r"-?\d{1,18}"), float: re.compile(r"-?(\d{1,20}(\.\d{1,40})?(e[+-]?\d{1,3})?|inf)")}


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text file with their numbers, from 1, without a byte-order mark. Raises InputError for a
    file that cannot be read, is not UTF-8, or exceeds the bounds."""
    with reading(path), path.open("rb") as file:
        number = 0
        while raw := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(raw) > MAX_LINE_BYTES:
                raise InputError(f"{path}:{number}: a line of more than {MAX_LINE_BYTES:,} bytes")
            if number > MAX_LINES:
                raise InputError(f"{path}:{number}: more than {MAX_LINES:,} lines")
            try:
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise InputError(f"{path}:{number}: not UTF-8 text") from error


def whole(path: Path) -> str:
    """Return the text of a file of at most MAX_BYTES, without a byte-order mark. Raises InputError."""
    with reading(path):
        raw = read_bounded(path, MAX_BYTES)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}:{raw[: error.start].count(10) + 1}: not UTF-8 text") from error


def parse_json(text: str, path: Path, first: int = 1) -> Any:
    """Parse JSON text that starts at line `first` of a file. Raises InputError with file and line."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{first + error.lineno - 1}: not JSON ({error.msg})") from error
    except (ValueError, RecursionError) as error:  # Integers with thousands of digits, or thousands of nested brackets.
        raise InputError(f"{path}:{first}: not usable JSON ({one_line(str(error))[:120]})") from error


def number(text: str, kind: type[int] | type[float]) -> int | float:
    """Parse a number in the form `repr` writes; integers have at most 18 digits. Raises InputError for any other
    spelling."""
    if not _NUMBERS[kind].fullmatch(text):
        raise InputError(f"not {'an integer' if kind is int else 'a number'}: {text[:40]!r}")
    return kind(text)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an OSError from reading a file into an InputError that names the file."""
    try:
        yield
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        told = one_line(str(getattr(error, "strerror", None) or error))[:200]  # Arrow's messages span several lines.
        raise InputError(f"{path} cannot be read ({told})") from error


@contextlib.contextmanager
def memory_limit(limit: int) -> Iterator[None]:
    """Limit this process to `limit` more bytes of address space inside the block; larger allocations raise MemoryError.
    For libraries without a decompression limit of their own. Linux only; a no-op elsewhere."""
    try:
        import resource

        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        allowed = min([used + limit, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)])
        resource.setrlimit(resource.RLIMIT_AS, (allowed, hard))
    except (ImportError, OSError, ValueError):
        yield
        return
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
