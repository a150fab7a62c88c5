"""Tables of installed packages, such as `gemmdb-tables-*`.

A package names itself in the entry-point group GROUP: `sm90 = "gemmdb_tables_example"`. Every `.db` file in its folder
is then a table of the Catalog. No code of the package is run: its folder is found, and the package is not imported.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import re
from collections.abc import Iterator
from pathlib import Path

from gemmdb.table.measurement import one_line

GROUP = "gemmdb.tables"
MOST = 1000
"""The most tables of all packages."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_log = logging.getLogger("gemmdb")


@functools.cache
def tables() -> tuple[Path, ...]:
    """The files of all packages, ordered by package and name. Entry points are read once per process. A package that
    cannot be used costs one warning and is left out."""
    found: dict[Path, None] = {}
    try:
        for value in sorted(_named()):
            found |= dict.fromkeys(_files(value))
    except Exception as error:  # The metadata of any installed package may be broken.
        _warn("the packages with tables cannot be listed", error)
    return tuple(found)[:MOST]


def _named() -> set[str]:
    # Imported where it is used: it takes longer than all of gemmdb's own modules.
    from importlib import metadata

    found: set[str] = set()
    for package in metadata.distributions():
        # Few files name the group. Parsing all of them takes as long as reading them.
        if GROUP in (package.read_text("entry_points.txt") or ""):
            found |= {entry.value for entry in package.entry_points if entry.group == GROUP}
    return found


def _files(package: str) -> Iterator[Path]:
    try:
        if not _NAME.fullmatch(package):
            raise ValueError("an entry point must be the name of a package")
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise ValueError("there is no such package")
        folders = [Path(folder) for folder in spec.submodule_search_locations]
        files = sorted(path for folder in folders if folder.is_dir() for path in folder.iterdir())
        databases = [path for path in files if path.suffix == ".db"]
        if not databases:
            raise ValueError("it holds no .db file")
    except Exception as error:  # Finders of other packages may raise anything.
        _warn(f"the entry point {package[:80]!r} of {GROUP} adds no tables", error)
        return
    yield from databases


def _warn(what: str, error: Exception) -> None:
    _log.warning("%s (%s)", what, one_line(f"{type(error).__name__}: {error}"))
