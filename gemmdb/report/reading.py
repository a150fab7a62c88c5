"""What kind of file a report is asked of, and the document of its page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gemmdb
from gemmdb.errors import InputError
from gemmdb.report import comparison, table, table_document, workload
from gemmdb.table.catalog import Catalog
from gemmdb.workload import entries


def document(path: Path, catalog: Catalog) -> dict[str, Any]:
    """What the page of a file draws: a table, a workload, or the JSON of `gemmdb compare --json`. The `catalog` answers
    the products of a workload. Raises InputError or TableError for any other file."""
    return {**_document(path, catalog), "version": gemmdb.__version__}


def _document(path: Path, catalog: Catalog) -> dict[str, Any]:
    if is_table(path):
        return table_document.document(table.of_table(path))
    if path.suffix == ".py":
        raise InputError(f"{path} is a program: run it with gemmdb report -- python {path}")
    text = "\n".join(line for _, line in entries.lines(path))
    found = _comparison(text)
    if found is not None:
        return comparison.of_json(found, path).document()
    recorded = entries.read(path)
    if not recorded.entries and not recorded.uncovered:
        raise InputError(f"{path} holds no problems: gemmdb record --out {path} -- COMMAND... records some")
    return workload.of_workload(recorded, path.name, catalog).document()


def is_table(path: Path) -> bool:
    """Whether a file is one of SQLite's. Raises InputError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(entries.SQLITE)) == entries.SQLITE
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def _comparison(text: str) -> dict[str, Any] | None:
    """The object in a text that is the JSON of a comparison as a whole."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and "default_us" in found else None
