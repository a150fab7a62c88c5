"""Catalog: the tables in use, in order, which of them may be used, and the device that a name stands for."""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemmdb import trust
from gemmdb.devices import detect, registry
from gemmdb.errors import GemmdbError, InputError, TableError
from gemmdb.key import canonical
from gemmdb.key.device import Device
from gemmdb.settings import Settings, data_home, shipped_tables
from gemmdb.table import dbfile
from gemmdb.table.file_locks import real
from gemmdb.table.measurement import one_line
from gemmdb.table.reader import Table

GROUP = "gemmdb.tables"  # The entry-point group of packages with tables: `sm90 = "gemmdb_tables_example"`
MOST_PACKAGED = 1000  # The most tables of all packages
_INSTALLED = ("package", "shipped")  # Origins of files that only an installation writes
_PACKAGE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_log = logging.getLogger("gemmdb")
_warned: set[str] = set()


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
                check = shipped_check(path) if source.origin == "shipped" else _policy_check(path, settings)
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


def _preferred(named: Sequence[Device], native: Device, known: Sequence[Device]) -> Device | None:
    """This machine's device, if tables know it or no other is named; else the first."""
    measured = [device for device in named if device in known]
    if native in measured or not measured:
        return next((device for device in named if device == native), None)
    return measured[0]


def sources(settings: Settings, tables: Sequence[Path] = ()) -> list[Source]:
    """The files that a Catalog opens, each once, in order. They may turn out to be unusable."""
    user_table, found = real(settings.user_table), dict[str, Source]()

    def add(path: Path, origin: str) -> None:
        if origin != "user" or written(path):
            found.setdefault(real(path), Source(path, origin))

    for path in map(Path, (*tables, *settings.tables)):
        # Live tuning writes to the user's own table, even if it is named here: cached graphs must stay valid.
        add(path, "user" if real(path) == user_table else "explicit")
    for path in (settings.user_table, *_databases(data_home())):
        add(path, "user")
    for path in packaged_tables():
        add(path, "package")
    for path in _databases(shipped_tables()):
        add(path, "shipped")
    return list(found.values())


def warn_of_missing(settings: Settings, tables: Sequence[Path]) -> None:
    """Give the warning that `Catalog.load` would give for each named file that does not exist. It is given once."""
    for source in sources(settings, tables):
        if source.origin == "explicit" and not os.path.exists(source.path):  # noqa: PTH110 - Path.exists may raise
            try:
                dbfile.check_file(source.path)
            except TableError as error:
                _warn(str(error))


def written(path: Path) -> bool:
    """Whether the file holds anything. A build that has just begun leaves an empty file."""
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
    """The `.db` files in the folders of all packages that name themselves in the entry-point group GROUP, ordered by
    package and name. No code of a package is run: its folder is found, and the package is not imported. Entry points
    are read once per process. A package that cannot be used costs one warning and is left out."""
    # Imported where it is used: it takes longer than all of gemmdb's own modules.
    from importlib import metadata

    names, found = set[str](), dict[Path, None]()
    try:
        for package in metadata.distributions():
            # Few files name the group. Parsing all of them takes as long as reading them.
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
        raise ValueError("it holds no .db file")
    yield from files


def shipped_check(path: Path) -> Callable[[], None]:
    """What raises TableError for a shipped file that is not what the manifest beside it says. Without a manifest, every
    file may be used."""

    def check() -> None:
        try:
            known = trust.shipped(path.parent)
        except (InputError, OSError, ValueError) as error:
            raise TableError(str(error)) from error
        if known and known.get(path.name) != _digest(path):
            raise TableError(f"{path} is not the file that {trust.MANIFEST} describes; install gemmdb again")

    return check


def _policy_check(path: Path, settings: Settings) -> Callable[[], None] | None:
    """What raises TableError for any other file that the user's policy does not list. None where it may be used:
    without a policy, and the file that this user's own compiles write. Raises InputError for an unreadable policy."""
    if settings.trust is None or _is_user_table(path, settings):
        return None
    policy, allowed = settings.trust, trust.listed(settings.trust)

    def check() -> None:
        if _digest(path) not in allowed:
            add = f"sha256sum {shlex.quote(str(path))} >> {shlex.quote(str(policy))}"
            raise TableError(f"{path} is not trusted: {policy} does not list its SHA-256; add it with `{add}`")

    return check


def check_inputs(out: Path, inputs: Iterable[Path], settings: Settings | None = None) -> None:
    """Raise TableError for one of the files `inputs` if what they hold is to get into the user's own table, which is
    used without being listed, and the policy does not list the file. Raises InputError for an unreadable policy."""
    settings = settings or Settings.read()
    for path in inputs if _is_user_table(out, settings) else ():
        if not _is_user_table(path, settings):
            check_digest(out, path, _digest(path), settings)


def check_digest(out: Path, path: Path, digest: str, settings: Settings | None = None) -> None:
    """The same of one file by its SHA-256."""
    settings = settings or Settings.read()
    if _is_user_table(out, settings) and settings.trust is not None and digest not in trust.listed(settings.trust):
        add = f"echo {digest} >> {shlex.quote(str(settings.trust))}"  # A file to be pulled is not here.
        raise TableError(
            f"{path} is not trusted: {settings.trust} does not list its SHA-256, and lookups use {out} without that;"
            f" add it with `{add}`, or name another table"
        )


def _is_user_table(path: Path, settings: Settings) -> bool:
    """Whether a path leads to the user's own table, under a policy."""
    return settings.trust is not None and real(path) == real(settings.user_table)


def _digest(path: Path) -> str:
    dbfile.check_file(path)
    try:
        return trust.sha256_in_use(path)
    except OSError as error:
        raise TableError(f"{path} cannot be read ({error.strerror}); check its permissions") from error


def _warn(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        _log.warning("%s (this table is not used)", message)
