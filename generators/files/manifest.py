"""`manifest.json` next to the shipped tables describes each table, and the archive of compiled kernels, so that changed
files are detected."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from gemmdb import trust
from gemmdb.files import replacing
from gemmdb.kernels.cutlass.archive import Archive
from gemmdb.table import schema
from gemmdb.table.reader import Table

NAME = trust.MANIFEST
_PER_DEVICE = ("arch", "device", "origin", "problems", "measurements")


def describe(path: Path) -> dict[str, Any]:
    """Return a file's manifest entry: name, sha256 and size in bytes; for a table its digest, devices, counts and
    provenance; for an archive of kernels (`.zip`) their number and build tools. Raises TableError."""
    entry = {"file": path.name, "sha256": trust.sha256_of(path), "bytes": path.stat().st_size}
    if path.suffix == ".zip":
        archive = Archive.open(path)
        return {**entry, "kernels": len(archive.kernels), "provenance": dict(archive.provenance)}
    with contextlib.closing(Table.open(path)) as table:
        devices = [{name: of[name] for name in _PER_DEVICE} for of in table.summary()]
        return {**entry, "digest": table.digest, "devices": devices, "provenance": table.provenance()}


def text(folder: Path) -> str:
    """Return the manifest of all tables and kernels in `folder`."""
    document = {
        "schema_version": schema.SCHEMA_VERSION,
        "tables": [describe(path) for path in sorted(folder.glob("*.db"))],
        "kernels": [describe(path) for path in sorted(folder.glob("kernels-*.zip"))],
    }
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def write_manifest(folder: Path) -> Path:
    """Write the manifest of `folder`, replacing the old one atomically. Returns its path."""
    with replacing(folder / NAME) as part:
        part.write_text(text(folder))
    return folder / NAME
