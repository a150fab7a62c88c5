"""`manifest.json` beside the shipped tables describes each file, so that a changed file is noticed: the tables, and the
archive of compiled kernels."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from gemmdb import trust
from gemmdb.errors import InputError, TableError
from gemmdb.kernels.cutlass.archive import Archive
from gemmdb.table import schema
from gemmdb.table.reader import Table

NAME = trust.MANIFEST
KERNELS = "kernels-*.zip"
"""The archives of kernels in a folder."""
_PER_DEVICE = ("arch", "device", "origin", "problems", "measurements")


def describe(path: Path) -> dict[str, Any]:
    """An entry of the manifest: name, sha256 and size in bytes of the file; of a table its digest, devices, counts and
    provenance; of an archive of kernels (`.zip`) their number, and what compiled them. Raises TableError."""
    entry = {"file": path.name, "sha256": trust.sha256_of(path), "bytes": path.stat().st_size}
    if path.suffix == ".zip":
        archive = Archive.open(path)
        return {**entry, "kernels": len(archive.kernels), "provenance": dict(archive.provenance)}
    with contextlib.closing(Table.open(path)) as table:
        devices = [{name: of[name] for name in _PER_DEVICE} for of in table.summary()]
        return {**entry, "digest": table.digest, "devices": devices, "provenance": table.provenance()}


def write_manifest(folder: Path) -> Path:
    """Write the manifest of all tables and kernels in `folder`, replacing the old one atomically. Returns its path."""
    document = {
        "schema_version": schema.SCHEMA_VERSION,
        "tables": [describe(path) for path in sorted(folder.glob("*.db"))],
        "kernels": [describe(path) for path in sorted(folder.glob(KERNELS))],
    }
    target = folder / NAME
    part = folder / f".{NAME}.part"
    part.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    return part.replace(target)


def check_manifest(folder: Path) -> list[str]:
    """The differences between the manifest of `folder` and its tables, a line each; empty if they agree.

    Raises InputError if the manifest is missing or malformed.
    """
    try:
        document = json.loads((folder / NAME).read_text())
        entries = [*document["tables"], *document.get("kernels", ())]
        listed = {str(entry["file"]): entry for entry in entries}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder / NAME} is not a manifest ({error}); write it again") from error
    present = {path.name: path for pattern in ("*.db", KERNELS) for path in folder.glob(pattern)}
    faults = [f"{name} is listed but missing" for name in sorted(listed.keys() - present.keys())]
    faults += [f"{name} is present but not listed" for name in sorted(present.keys() - listed.keys())]
    for name in sorted(listed.keys() & present.keys()):
        try:
            actual = describe(present[name])
        except TableError as error:
            faults.append(f"{name}: {error}")
            continue
        wrong = [field for field in actual if actual[field] != listed[name].get(field)]
        if wrong:
            faults.append(f"{name}: {', '.join(wrong)} differ from the manifest")
    return faults
