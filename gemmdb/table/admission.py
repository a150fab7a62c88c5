"""Which table files may be used: shipped ones by their manifest, pinned ones by GEMMDB_FROZEN, others by
GEMMDB_TRUST."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from pathlib import Path

from gemmdb import trust
from gemmdb.errors import InputError, TableError
from gemmdb.settings import Settings
from gemmdb.table import dbfile
from gemmdb.table.file_locks import real


def check_of(path: Path, origin: str, digest: str, settings: Settings) -> Callable[[], None] | None:
    """Return a check that raises TableError for a file that may not be used; None if it needs none. `origin`, `digest`:
    as in a Source."""
    if origin == "shipped":
        return shipped_check(path)
    if settings.frozen and settings.pins is not None:
        return _pin_check(path, digest, settings.pins)
    return _policy_check(path, settings)


def _pin_check(path: Path, digest: str, pins: Path) -> Callable[[], None]:
    """Return a check that raises TableError for a file that is not the pinned one; without a digest, not a pinned
    one."""
    digests = {digest} if digest else set(trust.pinned(pins).values())

    def check() -> None:
        if not path.exists():
            raise TableError(f"{path} does not exist, but {pins} lists it; copy it there, or run `gemmdb freeze` again")
        if digest_of(path) not in digests:
            raise TableError(
                f"{path} is not the table that {pins} lists: its SHA-256 differs; restore the file, or run"
                " `gemmdb freeze` again"
            )

    return check


def shipped_check(path: Path) -> Callable[[], None]:
    """Return a check that raises TableError for a shipped file that does not match its manifest. Without a manifest,
    every file passes."""

    def check() -> None:
        try:
            known = trust.shipped(path.parent)
        except (InputError, OSError, ValueError) as error:
            raise TableError(str(error)) from error
        if known and known.get(path.name) != digest_of(path):
            raise TableError(f"{path} is not the file that {trust.MANIFEST} describes; install gemmdb again")

    return check


def _policy_check(path: Path, settings: Settings) -> Callable[[], None] | None:
    """Return a check that raises TableError for any other file that the trust policy does not list. None if no check is
    needed: without a policy, or for the user table. Raises InputError for an unreadable policy."""
    if settings.trust is None or _is_user_table(path, settings):
        return None
    policy, allowed = settings.trust, trust.listed(settings.trust)

    def check() -> None:
        if digest_of(path) not in allowed:
            add = f"sha256sum {shlex.quote(str(path))} >> {shlex.quote(str(policy))}"
            raise TableError(f"{path} is not trusted: {policy} does not list its SHA-256; add it with `{add}`")

    return check


def check_inputs(out: Path, inputs: Iterable[Path], settings: Settings | None = None) -> None:
    """Raise TableError if `out` is the user table, which is trusted without being listed, and the policy does not list
    one of the `inputs`. Raises InputError for an unreadable policy."""
    settings = settings or Settings.read()
    for path in inputs if _is_user_table(out, settings) else ():
        if not _is_user_table(path, settings):
            check_digest(out, path, digest_of(path), settings)


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


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a table's file, as lists of digests have it. Raises TableError."""
    dbfile.check_file(path)
    try:
        return trust.sha256_in_use(path)
    except OSError as error:
        raise TableError(f"{path} cannot be read ({error.strerror}); check its permissions") from error
