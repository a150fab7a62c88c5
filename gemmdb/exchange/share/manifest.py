"""The manifest of tables at a URL: what each file must be. It has the form of the one beside the shipped tables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmdb import trust
from gemmdb.errors import InputError, TableError
from gemmdb.exchange.share.remote import Remote
from gemmdb.generators.files.manifest import NAME, describe
from gemmdb.table import schema
from gemmdb.table.reader import Table

MOST_BYTES = 2**26
"""Bytes of the largest manifest."""
MOST_TABLES = 1000
MOST_TABLE_BYTES = 2**36
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}\.db")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DIGEST = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Listed:
    """A file of a manifest: its name without folders, the sha256 and the number of its bytes, and the content digest of
    its table. `entry`: all that the manifest says."""

    file: str
    sha256: str
    size: int
    digest: str
    entry: dict[str, Any]

    @classmethod
    def of(cls, entry: Any, where: str) -> Listed:
        """The file of an entry. Raises InputError, which names `where`."""
        found = entry if isinstance(entry, dict) else {}
        file, sha256, size, digest = (found.get(name) for name in ("file", "sha256", "bytes", "digest"))
        named = all(
            isinstance(text, str) and pattern.fullmatch(text)
            for text, pattern in ((file, _FILE), (sha256, _SHA256), (digest, _DIGEST))
        )
        if not named or type(size) is not int or not 0 < size <= MOST_TABLE_BYTES:
            raise InputError(f"{where}: a malformed entry: {str(file)[:80]!r}")
        return cls(str(file), str(sha256), size, str(digest), found)


def fetch(remote: Remote) -> dict[str, Listed]:
    """The files that the manifest at a URL lists, by name. Raises InputError."""
    where = f"{remote.url}/{NAME}"
    try:
        text = remote.read(NAME, MOST_BYTES)
    except FileNotFoundError as error:
        raise InputError(f"{where} does not exist; `gemmdb tables push` writes it") from error
    return parse(text, where)


def parse(text: bytes, where: str) -> dict[str, Listed]:
    """The files of a manifest's text. Raises InputError, which names `where`."""
    try:
        document = json.loads(text)
        entries = document["tables"]
        version = document["schema_version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{where}: not a manifest of tables") from error
    if type(version) is not int or not schema.OLDEST_VERSION <= version <= schema.SCHEMA_VERSION:
        raise InputError(
            f"{where}: its tables have schema version {version!r:.20}; this one reads up to {schema.SCHEMA_VERSION}"
        )
    if not isinstance(entries, list) or len(entries) > MOST_TABLES:
        raise InputError(f"{where}: its tables are not a list of at most {MOST_TABLES}")
    found = [Listed.of(entry, where) for entry in entries]
    if len({one.file for one in found}) < len(found):
        raise InputError(f"{where}: a file is listed twice")
    return {one.file: one for one in found}


def text_of(listed: Iterable[Listed]) -> str:
    """The text of a manifest with these files."""
    entries = [one.entry for one in sorted(listed, key=lambda one: one.file)]
    return json.dumps({"schema_version": schema.SCHEMA_VERSION, "tables": entries}, indent=1, sort_keys=True) + "\n"


def listed(path: Path, file: str) -> Listed:
    """The entry for the table at `path` under the name `file`. Every row is read. Raises TableError for a table whose
    rows and digest contradict each other, and InputError for a name that no manifest may hold."""
    if (amiss := contradiction(path)) is not None:
        raise TableError(f"{path}: {amiss}; if something writes it just now, try again")
    return Listed.of({**describe(path), "file": file}, str(path))


def contradiction(path: Path, said: Listed | None = None) -> str | None:
    """How the file at `path` contradicts itself or what is said of it; None if it does not. Raises TableError."""
    if said is not None and trust.sha256_of(path) != said.sha256:
        return "its sha256 is not that of the manifest"
    with Table.open(path) as table:
        if table.content_digest() != table.digest:
            return "its rows do not have the content digest that it names"
        if said is not None and table.digest != said.digest:
            return "its content digest is not that of the manifest"
    return None
