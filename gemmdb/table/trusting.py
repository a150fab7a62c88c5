"""What a Catalog checks of a file before it is opened: the manifest of the shipped ones, and the user's policy."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from gemmdb import trust
from gemmdb.errors import InputError, TableError
from gemmdb.settings import Settings
from gemmdb.table import dbfile

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
    if settings.trust is None or dbfile.real(path) == dbfile.real(settings.user_table):
        return None
    place, allowed = settings.trust, trust.listed(settings.trust)

    def check() -> None:
        if _digest(path) not in allowed:
            add = f"sha256sum {shlex.quote(str(path))} >> {shlex.quote(str(place))}"
            raise TableError(f"{path} is not trusted: {place} does not list its SHA-256; add it with `{add}`")

    return check


def _digest(path: Path) -> str:
    dbfile.check_file(path)
    try:
        return trust.sha256_in_use(path)
    except OSError as error:
        raise TableError(f"{path} cannot be read ({error.strerror}); check its permissions") from error
