"""Catalog: the tables in lookup order, their trust checks, and device lookup by name."""

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

GROUP = "gemmdb.tables"  # Entry-point group of packages with tables: `sm90 = "gemmdb_tables_example"`
MOST_PACKAGED = 1000  # Maximum number of tables from all packages
_INSTALLED = ("package", "shipped")  # Origins of files that only an install writes
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
        user table. Raises InputError if GEMMDB_TRUST cannot be read.
        """
        entries = []
        settings = settings or Settings.read()
        if settings.trust is not None:
            trust.listed(settings.trust)  # Even if no file needs it today.
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


def shipped_check(path: Path) -> Callable[[], None]:
    """Return a check that raises TableError for a shipped file that does not match its manifest. Without a manifest,
    every file passes."""

    def check() -> None:
        try:
            known = trust.shipped(path.parent)
        except (InputError, OSError, ValueError) as error:
            raise TableError(str(error)) from error
        if known and known.get(path.name) != _digest(path):
            raise TableError(f"{path} is not the file that {trust.MANIFEST} describes; install gemmdb again")

    return check


def _policy_check(path: Path, settings: Settings) -> Callable[[], None] | None:
    """Return a check that raises TableError for any other file that the trust policy does not list. None if no check is
    needed: without a policy, or for the user table. Raises InputError for an unreadable policy."""
    if settings.trust is None or _is_user_table(path, settings):
        return None
    policy, allowed = settings.trust, trust.listed(settings.trust)

    def check() -> None:
        if _digest(path) not in allowed:
            add = f"sha256sum {shlex.quote(str(path))} >> {shlex.quote(str(policy))}"
            raise TableError(f"{path} is not trusted: {policy} does not list its SHA-256; add it with `{add}`")

    return check


def check_inputs(out: Path, inputs: Iterable[Path], settings: Settings | None = None) -> None:
    """Raise TableError if `out` is the user table, which is trusted without being listed, and the policy does not list
    one of the `inputs`. Raises InputError for an unreadable policy."""
    settings = settings or Settings.read()
    for path in inputs if _is_user_table(out, settings) else ():
        if not _is_user_table(path, settings):
            check_digest(out, path, _digest(path), settings)


def check_digest(out: Path, path: Path, digest: str, settings: Settings | None = None) -> None:
    """Check one input file by its SHA-256, like `check_inputs`."""
    settings = settings or Settings.read()
    if _is_user_table(out, settings) and settings.trust is not None and digest not in trust.listed(settings.trust):
        add = f"echo {digest} >> {shlex.quote(str(settings.trust))}"  # A file to be pulled is not on disk yet.
        raise TableError(
            f"{path} is not trusted: {settings.trust} does not list its SHA-256, and lookups use {out} without that;"
            f" add it with `{add}`, or name another table"
        )


def _is_user_table(path: Path, settings: Settings) -> bool:
    """Return whether a trust policy is set and the path is the user table."""
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
