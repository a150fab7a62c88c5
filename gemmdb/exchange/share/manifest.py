"""Manifest of the tables at a URL: the expected content of each file. It has the same form as the shipped tables'
manifest."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmdb import trust
from gemmdb.errors import InputError, TableError
from gemmdb.generators.files.manifest import describe
from gemmdb.rejected import Rejected
from gemmdb.table import schema
from gemmdb.table.reader import Table

MAX_BYTES = 2**26
"""Size limit of a manifest, in bytes."""
MAX_TABLES = 1000
MAX_TABLE_BYTES = 2**36
_TEXTS = {
    "file": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}\.db"),
    "sha256": re.compile(r"[0-9a-f]{64}"),
    "digest": re.compile(r"[0-9a-f]{32}"),
}
"""Text fields of an entry."""


@dataclass(frozen=True)
class Listed:
    """A file in a manifest: its name without folders, its sha256, its table's content digest, and its size in bytes.
    `entry`: the full manifest entry."""

    file: str
    sha256: str
    digest: str
    size: int
    entry: dict[str, Any]

    @classmethod
    def of(cls, entry: Any, where: str) -> Listed:
        """Return the file of an entry. Raises InputError, which names `where`."""
        found = entry if isinstance(entry, dict) else {}
        file, sha256, digest = texts = [str(found.get(name)) for name in _TEXTS]
        size = found.get("bytes")
        named = all(pattern.fullmatch(text) for text, pattern in zip(texts, _TEXTS.values(), strict=True))
        if not named or type(size) is not int or not 0 < size <= MAX_TABLE_BYTES:
            raise InputError(f"{where}: a malformed entry: {file[:80]!r}")
        return cls(file, sha256, digest, size, found)


def parse(text: bytes, where: str) -> dict[str, Listed]:
    """Parse a manifest and return its files. Raises InputError, which names `where`."""
    try:
        document = json.loads(text)
        entries = document["tables"]
        version = document["schema_version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{where}: not a manifest of tables") from error
    if type(version) is not int or not schema.OLDEST_VERSION <= version <= schema.PACKED_VERSION:
        raise InputError(
            f"{where}: its tables have schema version {version!r:.20}; this one reads up to {schema.PACKED_VERSION}"
        )
    if not isinstance(entries, list) or len(entries) > MAX_TABLES:
        raise InputError(f"{where}: its tables are not a list of at most {MAX_TABLES}")
    found = [Listed.of(entry, where) for entry in entries]
    if len({one.file for one in found}) < len(found):
        raise InputError(f"{where}: a file is listed twice")
    return {one.file: one for one in found}


def text_of(listed: Iterable[Listed]) -> str:
    """Return the text of a manifest with these files."""
    entries = [one.entry for one in sorted(listed, key=lambda one: one.file)]
    return json.dumps({"schema_version": schema.PACKED_VERSION, "tables": entries}, indent=1, sort_keys=True) + "\n"


def listed(path: Path, file: str) -> Listed:
    """Return the entry for the table at `path` under the name `file`, after reading every row. Raises TableError if the
    table's rows and digest contradict each other, and InputError for a name that is invalid in a manifest."""
    if rejected := rejection(path):
        raise TableError(f"{path}: {rejected}; if another process is writing it, try again later")
    return Listed.of({**describe(path), "file": file}, str(path))


def rejection(path: Path, said: Listed | None = None) -> Rejected | None:
    """Return how the file at `path` contradicts its own digest or the manifest. Raises TableError."""
    if said is not None and trust.sha256_of(path) != said.sha256:
        return Rejected("its sha256 does not match the manifest")
    with Table.open(path) as table:
        if table.content_digest() != table.digest:
            return Rejected("its rows do not match its content digest")
        if said is not None and table.digest != said.digest:
            return Rejected("its content digest does not match the manifest")
    return None
