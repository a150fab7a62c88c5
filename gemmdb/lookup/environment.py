"""The tables of the environment: opened once per process, and again when a file has changed."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gemmdb.settings import Settings, data_home, shipped_tables

if TYPE_CHECKING:
    from gemmdb.table.catalog import Catalog


def current_catalog() -> Catalog:
    """The Catalog of the current environment, opened once per process and again when a table's file has changed."""
    settings = Settings.read()
    return _load(settings, _state(settings))


@functools.lru_cache(maxsize=1)
def _load(settings: Settings, state: tuple[tuple[str, int, int, int], ...]) -> Catalog:
    from gemmdb.table.catalog import Catalog

    return Catalog.load(settings)


def _state(settings: Settings) -> tuple[tuple[str, int, int, int], ...]:
    """Path, inode, modification time and size of every file that may be a table."""
    files = []
    for path in sorted({*settings.tables, settings.user_table, *_policies(settings), *_databases()}):
        try:
            status = path.stat()
        except OSError:
            continue
        files.append((str(path), status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(files)


def _policies(settings: Settings) -> tuple[Path, ...]:
    return () if settings.trust is None else (settings.trust,)


def _databases() -> Iterator[Path]:
    """Every lookup lists these files, and `Path.glob` is too slow for that."""
    from gemmdb.table import packages  # It loads SQLite.

    yield from packages.tables()
    for folder in (data_home(), shipped_tables()):
        with suppress(OSError), os.scandir(folder) as entries:
            yield from (folder / entry.name for entry in entries if entry.name.endswith(".db"))
