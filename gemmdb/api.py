"""`gemmdb.lookup`: the ladder with the tables of the environment and the default policy."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gemmdb.errors import InputError
from gemmdb.hit import Hit
from gemmdb.key import toolchain
from gemmdb.key.problem import L2_STATES, Problem, Query
from gemmdb.settings import Policy, Settings, data_home, shipped_tables

if TYPE_CHECKING:
    from gemmdb.table.catalog import Catalog


def lookup(problem: Problem, device: str | None = None, l2: str = "cold") -> Hit | None:
    """The answer for `problem`, or None for a miss. It times nothing and ignores `on_miss`.

    `device`: a SKU or an arch, by default this machine. `l2`: the state of the last-level cache before each call,
    `cold` or `hot`. Raises InputError for another state, and for an unknown device that is in no table.
    """
    if l2 not in L2_STATES:
        raise InputError(f"unknown l2 state {l2!r}; known: {', '.join(L2_STATES)}")
    from gemmdb import ladder  # It loads SQLite, which a program without lookups does not need.

    catalog = current_catalog()
    where = catalog.resolve(device)
    query = Query(problem, where, l2=l2)
    return ladder.lookup(query, catalog, Policy(), toolchain.installed(where.kind))


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
