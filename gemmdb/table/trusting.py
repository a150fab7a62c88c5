"""What a Catalog checks of a file before it is opened: the manifest of the shipped ones, and the user's policy."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from pathlib import Path

from gemmdb import trust
from gemmdb.errors import InputError, TableError
from gemmdb.settings import Settings
from gemmdb.table import dbfile, file_locks

Check = Callable[[], None]
"""Raises TableError for a file that may not be used."""


def shipped(path: Path) -> Check:
    """The check of a shipped file: it is what the manifest beside it says. Without a manifest, none is made."""

    def check() -> None:
        try:
            known = trust.shipped(path.parent)
        except (InputError, OSError, ValueError) as error:
            raise TableError(str(error)) from error
        if known and known.get(path.name) != _digest(path):
            raise TableError(f"{path} is not the file that {trust.MANIFEST} describes; install gemmdb again")

    return check


def foreign(path: Path, settings: Settings) -> Check | None:
    """The check of any other file. None where the policy trusts it: without one, and the file that this user's own
    compiles write. Raises InputError if the policy cannot be read."""
    if settings.trust is None or _own(path, settings):
        return None
    place, allowed = settings.trust, trust.listed(settings.trust)

    def check() -> None:
        if _digest(path) not in allowed:
            add = f"sha256sum {shlex.quote(str(path))} >> {shlex.quote(str(place))}"
            raise TableError(f"{path} is not trusted: {place} does not list its SHA-256; add it with `{add}`")

    return check


def admit(out: Path, inputs: Iterable[Path], settings: Settings | None = None) -> None:
    """Raise TableError for one of the files `inputs` if what they hold is to get into the user's own table, which is
    used without being listed, and the policy does not list the file. Raises InputError if it cannot be read."""
    settings = settings or Settings.read()
    for path in inputs if _own(out, settings) else ():
        if not _own(path, settings):
            admit_digest(out, path, _digest(path), settings)


def admit_digest(out: Path, path: Path, digest: str, settings: Settings | None = None) -> None:
    """The same of one file by its SHA-256."""
    settings = settings or Settings.read()
    if _own(out, settings) and settings.trust is not None and digest not in trust.listed(settings.trust):
        add = f"echo {digest} >> {shlex.quote(str(settings.trust))}"  # A file to be pulled is not here.
        raise TableError(
            f"{path} is not trusted: {settings.trust} does not list its SHA-256, and lookups use {out} without that;"
            f" add it with `{add}`, or name another table"
        )


def _own(path: Path, settings: Settings) -> bool:
    """Whether a path leads to the user's own table, under a policy."""
    return settings.trust is not None and file_locks.real(path) == file_locks.real(settings.user_table)


def _digest(path: Path) -> str:
    dbfile.check_file(path)
    try:
        return trust.sha256_in_use(path)
    except OSError as error:
        raise TableError(f"{path} cannot be read ({error.strerror}); check its permissions") from error
