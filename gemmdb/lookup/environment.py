"""The settings and tables of the environment, read once and again when they may have changed."""

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
"""How often the environment is read again, at most: it costs more than ten exact lookups."""

FileState = tuple[str, int, int, int]
"""Path, inode, modification time in ns and size of a file."""


class Environment:
    """The settings and the files of their tables at one time. The Catalog opens at its first use."""

    def __init__(self, settings: Settings, files: tuple[FileState, ...]) -> None:
        self.settings, self.files, self.checked = settings, files, time.monotonic()
        self._catalog: Catalog | None = None
        self._devices: dict[str, Device] = {}

    def catalog(self) -> Catalog:
        """The tables, opened once."""
        if self._catalog is None:
            from gemmdb.table.catalog import Catalog  # It loads SQLite.

            self._catalog = Catalog.load(self.settings)
        return self._catalog

    def resolve(self, name: str | None) -> Device:
        """`Catalog.resolve`, remembered for names. Raises InputError for an unknown one."""
        if name is None:
            return self.catalog().resolve(None)
        if name not in self._devices:
            self._devices[name] = self.catalog().resolve(name)
        return self._devices[name]


_current: Environment | None = None


def current() -> Environment:
    """The environment as it was at most INTERVAL_S seconds ago: the same object until settings or files change."""
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
    """Let the next lookup and the next compile read the settings and the tables again.

    Both notice changes of the environment and of files by themselves, within a tenth of a second.
    """
    global _current
    _current = None


def current_catalog() -> Catalog:
    """The tables of the current environment."""
    return current().catalog()


def _files(settings: Settings) -> tuple[FileState, ...]:
    """The state of every file that may be a table, and of the file of trusted digests."""
    trust = () if settings.trust is None else (settings.trust,)
    return tuple(file_states({*settings.tables, settings.user_table, *trust, *_databases()}))


def file_states(paths: set[Path]) -> Iterator[FileState]:
    """The states of those of the files that exist, sorted by path."""
    for path in sorted(paths):
        with suppress(OSError):
            status = path.stat()
            yield str(path), status.st_ino, status.st_mtime_ns, status.st_size


def _databases() -> Iterator[Path]:
    """The tables of packages, the user's folder and ours. `Path.glob` takes ten times as long."""
    from gemmdb.table.catalog import packaged_tables  # It loads SQLite.

    yield from packaged_tables()
    for folder in (data_home(), shipped_tables()):
        with suppress(OSError), os.scandir(folder) as entries:
            yield from (folder / entry.name for entry in entries if entry.name.endswith(".db"))
