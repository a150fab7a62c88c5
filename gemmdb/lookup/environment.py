"""The settings and tables of the environment, cached until they may have changed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gemmdb.key.device import Device
from gemmdb.settings import Settings, data_home, shipped_tables

if TYPE_CHECKING:
    from gemmdb.table.catalog import Catalog

INTERVAL_S = 0.1
"""Minimum interval between reads of the environment, which cost more than ten exact lookups."""

FileState = tuple[str, int, int, int]
"""Path, inode, modification time in ns and size of a file."""


class Environment:
    """A snapshot of the settings and their table files. The Catalog opens on first use."""

    def __init__(self, settings: Settings, files: tuple[FileState, ...]) -> None:
        self.settings, self.files, self.checked = settings, files, time.monotonic()
        self._catalog: Catalog | None = None
        self._devices: dict[str, Device] = {}

    def catalog(self) -> Catalog:
        """Return the tables, opened once."""
        if self._catalog is None:
            from gemmdb.table.catalog import Catalog  # It loads SQLite.

            # A lookup in a part of the pinned tables would not say what a frozen program runs.
            pinned = self.settings.frozen and self.settings.pins is not None
            self._catalog = Catalog.load(self.settings, strict=pinned)
        return self._catalog

    def resolve(self, name: str | None) -> Device:
        """`Catalog.resolve`, cached by name. Raises InputError for an unknown name."""
        if name is None:
            return self.catalog().resolve(None)
        if name not in self._devices:
            self._devices[name] = self.catalog().resolve(name)
        return self._devices[name]


_current: Environment | None = None


def current() -> Environment:
    """Return the environment, at most INTERVAL_S seconds old: the same object until settings or files change."""
    global _current
    found = _current
    if found is None or time.monotonic() - found.checked >= INTERVAL_S:
        settings = Settings.read()
        files = _files(settings)
        if found is not None and (found.settings, found.files) == (settings, files):
            found.checked = time.monotonic()
        else:
            found = Environment(settings, files)
        _current = found
    return found


def refresh() -> None:
    """Make the next lookup and the next compile reread the settings and the tables.

    Without this call, changes to the environment and to files take effect within 0.1 seconds.
    """
    global _current
    _current = None


def current_catalog() -> Catalog:
    """Return the tables of the current environment."""
    return current().catalog()


def _files(settings: Settings) -> tuple[FileState, ...]:
    """Return the state of every possible table file and of the trusted-digest file."""
    lists = filter(None, (settings.trust, settings.pins))
    near = () if settings.pins is None else _in_folder(settings.pins.parent)
    return tuple(file_states({*settings.tables, settings.user_table, *lists, *near, *_databases()}))


def file_states(paths: set[Path]) -> Iterator[FileState]:
    """Yield the states of the existing files, sorted by path."""
    for path in sorted(paths):
        with suppress(OSError):
            status = path.stat()
            yield str(path), status.st_ino, status.st_mtime_ns, status.st_size


def _databases() -> Iterator[Path]:
    """Yield the tables of packages, the user's directory and gemmdb. `Path.glob` is ten times slower."""
    from gemmdb.table.catalog import packaged_tables  # It loads SQLite.

    yield from packaged_tables()
    for folder in (data_home(), shipped_tables()):
        yield from _in_folder(folder)


def _in_folder(folder: Path) -> Iterator[Path]:
    with suppress(OSError), os.scandir(folder) as entries:
        yield from (folder / entry.name for entry in entries if entry.name.endswith(".db"))
