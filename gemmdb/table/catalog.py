"""Catalog: the tables in use, in order, and the device that a name stands for."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemmdb.devices import detect, registry
from gemmdb.errors import GemmdbError, InputError, TableError
from gemmdb.key import canonical
from gemmdb.key.device import Device
from gemmdb.settings import Settings, data_home, shipped_tables
from gemmdb.table import dbfile, file_locks, packages, trusting
from gemmdb.table.measurement import one_line
from gemmdb.table.reader import Table

_log = logging.getLogger("gemmdb")
_warned: set[str] = set()
_INSTALLED = ("package", "shipped")
"""Origins of files that an installation wrote, and that nobody writes afterwards."""


@dataclass(frozen=True)
class Source:
    """A table file to open. `origin`: `explicit` (an argument or GEMMDB_TABLES), `user`, `package` (of an
    installed package) or `shipped`."""

    path: Path
    origin: str


class Catalog:
    """The tables in lookup order. A snapshot: it does not see files that appear after it was loaded."""

    def __init__(self, entries: Sequence[tuple[Source, Table]]) -> None:
        self._entries = tuple(entries)
        self.tables = tuple(table for _, table in self._entries)

    @classmethod
    def load(cls, settings: Settings | None = None, *, tables: Sequence[Path] = (), strict: bool = False) -> Catalog:
        """Open the explicit `tables`, those of GEMMDB_TABLES, the user's own, those of installed packages and the
        shipped ones, in this order.

        A file that cannot be used is left out with one warning; with `strict` it raises TableError. The user's own
        table may be missing. Of the shipped files those are used that their manifest describes; of the others, if
        GEMMDB_TRUST is set, those that it lists, and the user's own table. Raises InputError if it cannot be read.
        """
        entries = []
        settings = settings or Settings.read()
        for source in sources(settings, tables):
            path = source.path
            try:
                check = trusting.shipped(path) if source.origin == "shipped" else trusting.foreign(path, settings)
                entries.append((source, Table.open(path, immutable=source.origin in _INSTALLED, check=check)))
            except TableError as error:
                if strict:
                    raise
                _warn(str(error))
        return cls(entries)

    def identity(self) -> str:
        """What compile-cache keys contain about the tables. A shipped or explicit table gives its digest. The user's
        table gives its generation and the digest of that time, which live tuning does not change: new rows of live
        tuning keep compiled graphs valid. A table that only live tuning wrote gives nothing, so creating it keeps them
        valid too."""
        parts = [
            f"{table.uid}:{table.generation}:{table.built}" if source.origin == "user" else table.digest
            for source, table in self._entries
            if source.origin != "user" or table.generation
        ]
        return f"{canonical.key(' '.join(parts)) % 2**64:016x}"

    def resolve(self, name: str | None) -> Device:
        """The device that a SKU or arch names; None stands for this machine's. Several devices may match: a SKU goes
        before an arch, this machine's device before others, tables before the registry of known devices. Raises
        InputError for an unknown name."""
        native = detect.native()
        if name is None:
            return native
        known = [device for table in self.tables for device in _devices(table)]
        named = [device for device in (native, *known) if device.named(name)]
        by_sku = [device for device in named if device.sku.lower() == name.lower()]
        found = _preferred(by_sku, native, known) or _preferred(named, native, known) or registry.find(name)
        if found is None:
            names = sorted({text for device in (native, *known, *registry.KNOWN) for text in (device.sku, device.arch)})
            if meant := registry.similar(name, names):
                raise InputError(f"unknown device {name!r}; did you mean {' or '.join(map(repr, meant))}?")
            raise InputError(f"unknown device {name!r}; known: {', '.join(names)}")
        return found

    def close(self) -> None:
        """Close every table."""
        for table in self.tables:
            table.close()


def _devices(table: Table) -> Sequence[Device]:
    """The devices of a table; none, and one warning, if it cannot say."""
    try:
        return table.devices()
    except TableError as error:
        _warn(str(error))
    except (GemmdbError, ValueError) as error:
        _warn(f"{table.path} is broken ({one_line(str(error))[:300]})")
    return ()


def sources(settings: Settings, tables: Sequence[Path] = ()) -> list[Source]:
    """The files that a Catalog opens, each once, in order. They may turn out to be unusable."""
    found: dict[str, Source] = {}
    for source in _all_sources(settings, tables):
        found.setdefault(file_locks.real(source.path), source)
    return list(found.values())


def warn_of_missing(settings: Settings, tables: Sequence[Path]) -> None:
    """Give the warning that `Catalog.load` would give for each named file that does not exist. It is given once."""
    for source in sources(settings, tables):
        if source.origin == "explicit" and not os.path.exists(source.path):  # noqa: PTH110 - Path.exists may raise
            try:
                dbfile.check_file(source.path)
            except TableError as error:
                _warn(str(error))


def _all_sources(settings: Settings, tables: Sequence[Path]) -> Iterator[Source]:
    own = file_locks.real(settings.user_table)
    for path in (*tables, *settings.tables):
        # Live tuning writes to the user's own table, even if it is named here: cached graphs must stay valid.
        if file_locks.real(Path(path)) != own:
            yield Source(Path(path), "explicit")
        elif written(Path(path)):
            yield Source(Path(path), "user")
    for path in (settings.user_table, *_databases(data_home())):
        if written(path):
            yield Source(path, "user")
    for path in packages.tables():
        yield Source(path, "package")
    for path in _databases(shipped_tables()):
        yield Source(path, "shipped")


def _databases(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".db")
    except OSError:
        return []


def written(path: Path) -> bool:
    """Whether the file holds anything. A build that has just begun leaves an empty file."""
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def _preferred(named: Sequence[Device], native: Device, known: Sequence[Device]) -> Device | None:
    """This machine's device, if tables know it or no other is named; else the first."""
    measured = [device for device in named if device in known]
    if native in measured or not measured:
        return next((device for device in named if device == native), None)
    return measured[0]


def _warn(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        _log.warning("%s (this table is not used)", message)
