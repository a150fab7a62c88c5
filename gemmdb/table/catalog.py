"""Catalog: the ordered tables in force, and the device that a name stands for in them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemmdb.devices import detect, registry
from gemmdb.errors import InputError, TableError
from gemmdb.key import canonical
from gemmdb.key.device import Device
from gemmdb.settings import Settings, data_home, shipped_tables
from gemmdb.table import dbfile
from gemmdb.table.reader import Table

_log = logging.getLogger("gemmdb")
_warned: set[str] = set()


@dataclass(frozen=True)
class Source:
    """A table file to open. `origin`: `explicit` (an argument or GEMMDB_TABLES), `user` or `shipped`."""

    path: Path
    origin: str


class Catalog:
    """The tables in the order in which they are asked; a snapshot of which files there were when it was loaded."""

    def __init__(self, entries: Sequence[tuple[Source, Table]]) -> None:
        self._entries = tuple(entries)
        self.tables = tuple(table for _, table in self._entries)

    @classmethod
    def load(cls, settings: Settings | None = None, *, tables: Sequence[Path] = (), strict: bool = False) -> Catalog:
        """Open the explicit `tables`, those of GEMMDB_TABLES, the user's own and the shipped, in this order.

        A file that cannot be used is left out with one warning; with `strict` it is a TableError. A file of the user's
        that does not exist yet is no fault.
        """
        entries = []
        for source in sources(settings or Settings.read(), tables):
            try:
                entries.append((source, Table.open(source.path, immutable=source.origin == "shipped")))
            except TableError as error:
                if strict:
                    raise
                _warn(str(error))
        return cls(entries)

    def identity(self) -> str:
        """What compile-cache keys hold of the tables: digests of the shipped and explicit ones; of the user's the
        generation and the digest as of then, which live tuning does not change, so that a row it wrote leaves compiled
        graphs valid; nothing of one that only live tuning has written, so that making it does so too."""
        parts = [
            f"{table.uid}:{table.generation}:{table.built}" if source.origin == "user" else table.digest
            for source, table in self._entries
            if source.origin != "user" or table.generation
        ]
        return f"{canonical.key(' '.join(parts)) % 2**64:016x}"

    def resolve(self, name: str | None) -> Device:
        """The device that a SKU or arch names: None is this machine's. Of several the one whose SKU it is, else this
        machine's own, else the first in the tables, else what the registry of known devices has. Raises InputError
        for any other name."""
        native = detect.native()
        if name is None:
            return native
        known = [device for table in self.tables for device in table.devices()]
        named = [device for device in (native, *known) if device.named(name)]
        by_sku = [device for device in named if device.sku.lower() == name.lower()]
        found = _preferred(by_sku, native, known) or _preferred(named, native, known) or registry.find(name)
        if found is None:
            names = sorted({text for device in (native, *known, *registry.KNOWN) for text in (device.sku, device.arch)})
            raise InputError(f"unknown device {name!r}; known: {', '.join(names)}")
        return found

    def close(self) -> None:
        """Close every table."""
        for table in self.tables:
            table.close()


def sources(settings: Settings, tables: Sequence[Path] = ()) -> list[Source]:
    """The files that a Catalog opens, each once, in order; whether they can be used is not looked at."""
    found: dict[str, Source] = {}
    for source in _all_sources(settings, tables):
        found.setdefault(dbfile.real(source.path), source)
    return list(found.values())


def _all_sources(settings: Settings, tables: Sequence[Path]) -> Iterator[Source]:
    own = dbfile.real(settings.user_table)
    for path in (*tables, *settings.tables):
        # The user's own, named or not, is what live tuning writes to: graphs that were cached before stay valid.
        if dbfile.real(Path(path)) != own:
            yield Source(Path(path), "explicit")
        elif written(Path(path)):
            yield Source(Path(path), "user")
    for path in (settings.user_table, *_databases(data_home())):
        if written(path):
            yield Source(path, "user")
    for path in _databases(shipped_tables()):
        yield Source(path, "shipped")


def _databases(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".db")
    except OSError:
        return []


def written(path: Path) -> bool:
    """Whether there is anything yet: a build that just began has made its file and written nothing."""
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def _preferred(named: Sequence[Device], native: Device, known: Sequence[Device]) -> Device | None:
    """This machine's own device when tables have it or no other is named, else the first."""
    measured = [device for device in named if device in known]
    if native in measured or not measured:
        return next((device for device in named if device == native), None)
    return measured[0]


def _warn(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        _log.warning("%s (this table is not used)", message)
