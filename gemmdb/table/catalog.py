"""Catalog: the tables in lookup order, their trust checks, and device lookup by name."""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemmdb import trust
from gemmdb.devices import detect, registry
from gemmdb.errors import GemmdbError, InputError, TableError
from gemmdb.key import canonical
from gemmdb.key.device import Device
from gemmdb.settings import Settings, data_home, shipped_tables
from gemmdb.table import admission, dbfile
from gemmdb.table.file_locks import real, state
from gemmdb.table.measurement import one_line
from gemmdb.table.reader import Table

GROUP = "gemmdb.tables"  # Entry-point group of packages with tables: `sm90 = "gemmdb_tables_example"`
MOST_PACKAGED = 1000  # Maximum number of tables from all packages
_INSTALLED = ("package", "shipped", "pinned")  # Origins of files that only an install writes
_PACKAGE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_log = logging.getLogger("gemmdb")
_warned: set[str] = set()
_shipped: dict[Path, tuple[object, Table]] = {}
"""Open shipped tables by path, each with the states of its file and manifest. All catalogs of a process share them:
what lookups have read of them is kept, while the user's table changes with each compile that stores rows."""


@dataclass(frozen=True)
class Source:
    """A table file to open. `origin`: `explicit` (an argument or GEMMDB_TABLES), `user`, `package` (of an
    installed package), `shipped`, or `pinned` (of GEMMDB_FROZEN, with its SHA-256)."""

    path: Path
    origin: str
    digest: str = ""


class Catalog:
    """The tables in lookup order. A snapshot: files added after loading are not included."""

    def __init__(self, entries: Sequence[tuple[Source, Table]]) -> None:
        self._entries = tuple(entries)
        self.tables = tuple(table for _, table in self._entries)

    @classmethod
    def load(cls, settings: Settings | None = None, *, tables: Sequence[Path] = (), strict: bool = False) -> Catalog:
        """Open the explicit `tables`, then those in GEMMDB_TABLES, the user's tables, those of installed packages, and
        the shipped ones.

        An unusable file is skipped with one warning; with `strict` it raises TableError. The user table may be missing.
        Shipped files must match their manifest. If GEMMDB_TRUST is set, other files must be listed in it, except the
        user table. Raises InputError if GEMMDB_TRUST or GEMMDB_FROZEN cannot be read.

        Frozen settings leave out the user's and packages' tables. With pinned tables, only these are opened, and copies
        of them; none if one is unusable: a part of them would give other kernels than the whole.
        """
        entries = []
        settings = settings or Settings.read()
        if settings.trust is not None:
            trust.listed(settings.trust)  # Even if no file needs it today.
        for source in sources(settings, tables):
            try:
                entries.append((source, _opened(source, settings)))
            except TableError as error:
                if strict:
                    raise
                if source.origin == "pinned":
                    _warn(str(error), "so no table is used, and ATen runs")
                    return cls(())
                _warn(str(error))
        return cls(entries)

    @property
    def entries(self) -> Sequence[tuple[Source, Table]]:
        """Each table with its source."""
        return self._entries

    def identity(self) -> str:
        """Return the tables' part of compile-cache keys. A shipped or explicit table contributes its digest. The user
        table contributes its generation and the digest at that generation, which live tuning does not change, so its
        new rows keep compiled graphs valid. A table that only live tuning wrote contributes nothing, so creating it
        also keeps them valid."""
        parts = [
            f"{table.uid}:{table.generation}:{table.built}" if source.origin == "user" else table.digest
            for source, table in self._entries
            if source.origin != "user" or table.generation
        ]
        return f"{canonical.key(' '.join(parts)) % 2**64:016x}"

    def resolve(self, name: str | None) -> Device:
        """Return the device for a SKU or arch name; None means this machine's. If several devices match, a SKU is
        preferred over an arch, this machine's device over others, and tables over the registry of known devices. Raises
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


def _opened(source: Source, settings: Settings) -> Table:
    """Return the open table of a source. Raises TableError if it may not be used."""
    path, check = source.path, admission.check_of(source.path, source.origin, source.digest, settings)
    if source.origin != "shipped":
        installed, pinned = source.origin in _INSTALLED, source.origin == "pinned"
        return Table.open(path, immutable=installed, check=check, pinned=pinned)
    now = state(path), state(path.parent / trust.MANIFEST)
    known = _shipped.get(path)
    if known is None or known[0] != now:
        known = _shipped[path] = now, Table.open(path, immutable=True, check=check)
    return known[1]


def _devices(table: Table) -> Sequence[Device]:
    """Return a table's devices; on a broken table warn once and return none."""
    try:
        return table.devices()
    except TableError as error:
        _warn(str(error))
    except (GemmdbError, ValueError) as error:
        _warn(f"{table.path} is broken ({one_line(str(error))[:300]})")
    return ()


def _preferred(named: Sequence[Device], native: Device, known: Sequence[Device]) -> Device | None:
    """Return this machine's device if tables have it or no other device matches; else the first."""
    measured = [device for device in named if device in known]
    if native in measured or not measured:
        return next((device for device in named if device == native), None)
    return measured[0]


def sources(settings: Settings, tables: Sequence[Path] = ()) -> list[Source]:
    """Return the files that a Catalog opens, in order and without duplicates. They may turn out to be unusable."""
    user_table, found = real(settings.user_table), dict[str, Source]()

    def add(path: Path, origin: str) -> None:
        if origin != "user" or written(path):
            found.setdefault(real(path), Source(path, origin))

    if settings.frozen:
        return _frozen_sources(settings, tables)
    for path in map(Path, (*tables, *settings.tables)):
        # Live tuning writes to the user table even if it is also listed here: cached graphs must stay valid.
        add(path, "user" if real(path) == user_table else "explicit")
    for path in (settings.user_table, *_databases(data_home())):
        add(path, "user")
    for path in packaged_tables():
        add(path, "package")
    for path in _databases(shipped_tables()):
        add(path, "shipped")
    return list(found.values())


def _frozen_sources(settings: Settings, tables: Sequence[Path]) -> list[Source]:
    """Return the pinned files; without pins, the explicit and the shipped ones. A pinned name is that of a file next to
    the digests, else of a shipped one. An explicit file has to be pinned, too."""
    found = dict[str, Source]()
    for path in map(Path, (*tables, *settings.tables)):
        found.setdefault(real(path), Source(path, "explicit"))
    if settings.pins is None:
        for path in _databases(shipped_tables()):
            found.setdefault(real(path), Source(path, "shipped"))
        return list(found.values())
    for name, digest in trust.pinned(settings.pins).items():
        near, shipped = settings.pins.parent / name, shipped_tables() / name
        path = shipped if not near.exists() and shipped.exists() else near
        found[real(path)] = Source(path, "pinned", digest)
    return list(found.values())


def warn_of_missing(settings: Settings, tables: Sequence[Path]) -> None:
    """Warn once about each explicit file that does not exist, like `Catalog.load`."""
    for source in sources(settings, tables):
        if source.origin == "explicit" and not os.path.exists(source.path):  # noqa: PTH110 - Path.exists may raise
            try:
                dbfile.check_file(source.path)
            except TableError as error:
                _warn(str(error))


def written(path: Path) -> bool:
    """Return whether the file is nonempty. A build that has just started leaves an empty file."""
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def _databases(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".db")
    except OSError:
        return []


@functools.cache
def packaged_tables() -> tuple[Path, ...]:
    """Return the `.db` files in the directories of all packages registered in the entry-point group GROUP, ordered by
    package and name. Packages are located without importing them, so none of their code runs. Entry points are read
    once per process. An unusable package is skipped with one warning."""
    # Imported lazily: it takes longer to import than all of gemmdb's own modules.
    from importlib import metadata

    names, found = set[str](), dict[Path, None]()
    try:
        for package in metadata.distributions():
            # Few files contain the group name. Parsing all of them takes as long as reading them.
            if GROUP in (package.read_text("entry_points.txt") or ""):
                names |= {entry.value for entry in package.entry_points if entry.group == GROUP}
    except Exception as error:  # The metadata of any installed package may be broken.
        why = one_line(f"{type(error).__name__}: {error}")
        _log.warning("the packages with tables cannot be listed (%s)", why)
        return ()
    for name in sorted(names):
        try:
            found |= dict.fromkeys(_package_files(name))
        except Exception as error:  # Finders of other packages may raise anything.
            why = one_line(f"{type(error).__name__}: {error}")
            _log.warning("the entry point %r of %s adds no tables (%s)", name[:80], GROUP, why)
    return tuple(found)[:MOST_PACKAGED]


def _package_files(package: str) -> Iterator[Path]:
    if not _PACKAGE.fullmatch(package):
        raise ValueError("an entry point must be the name of a package")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError("there is no such package")
    folders = [Path(folder) for folder in spec.submodule_search_locations]
    files = sorted(path for folder in folders if folder.is_dir() for path in folder.iterdir() if path.suffix == ".db")
    if not files:
        raise ValueError("it contains no .db file")
    yield from files


def _warn(message: str, effect: str = "this table is not used") -> None:
    if message not in _warned:
        _warned.add(message)
        _log.warning("%s (%s)", message, effect)
