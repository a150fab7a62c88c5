"""Pull tables from a URL, and push tables to one.

A pulled file replaces its target only if its sha256, content digest and rows match the manifest. The next pull resumes
a broken download.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemmdb import trust
from gemmdb.errors import InputError, TableError
from gemmdb.exchange import bounded
from gemmdb.exchange.share import manifest
from gemmdb.exchange.share.manifest import Listed
from gemmdb.exchange.share.remote import PATIENCE_S, Remote
from gemmdb.files import replacing
from gemmdb.generators.files.manifest import NAME
from gemmdb.generators.files.merge import held
from gemmdb.rejected import Rejected
from gemmdb.table import file_locks
from gemmdb.table.admission import check_digest

PULLED = ".pulled.json"
"""File beside pulled tables with the sha256 of each at pull time. A file that still matches may be replaced."""


@dataclass(frozen=True)
class Transferred:
    """Result for one table: `state` is `pulled`, `current` (already present) or `pushed`. `resumed`: bytes left by an
    earlier, broken download."""

    file: str
    path: str
    state: str
    bytes: int
    digest: str
    resumed: int = 0


def _say_nothing(line: str) -> None: ...


def pull(
    url: str, into: Path, names: Sequence[str] = (), replace: bool = False,
    say: Callable[[str], None] = _say_nothing, patience_s: float = PATIENCE_S,
) -> list[Transferred]:  # fmt: skip
    """Download all tables in the manifest at `url`, or the named ones, into the folder `into`.

    A local file with the same bytes is kept. A different file of that name is replaced if it was pulled and has not
    changed since, or with `replace`. `say` receives a line at the start of each transfer. `patience_s`: how many
    seconds an HTTP server may be silent. Raises InputError; that table and those after it then stay unchanged.
    """
    remote = Remote.at(url, patience_s)
    try:
        known = _known(remote)
    except FileNotFoundError as error:
        raise InputError(f"{remote.url}/{NAME} does not exist; `gemmdb tables push` writes it") from error
    if unknown := [name for name in names if name not in known]:
        raise InputError(f"{remote.url} has no table {unknown[0]!r}; it has: {', '.join(sorted(known))[:300]}")
    try:
        into.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{into} cannot be made ({error.strerror}); name another folder") from error
    chosen = [known[name] for name in (names or sorted(known))]
    for one in chosen:  # Before anything is downloaded.
        check_digest(into / one.file, Path(one.file), one.sha256)
        _check_target(into / one.file, one, replace)
    return [_pull(remote, into, one, say) for one in chosen]


def _known(remote: Remote) -> dict[str, Listed]:
    """Return the files in the manifest, by name. Raises InputError, and FileNotFoundError if there is no manifest."""
    return manifest.parse(remote.read(NAME, manifest.MAX_BYTES), f"{remote.url}/{NAME}")


def push(url: str, tables: Sequence[Path], say: Callable[[str], None] = _say_nothing) -> list[Transferred]:
    """Upload tables to the folder at `url`, and then its manifest, which keeps its earlier entries.

    Uploads a copy of each file after checking all its rows. Raises InputError and TableError.
    """
    remote = Remote.at(url)
    names = [path.name for path in tables]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"two of the tables are called {twice[0]}; rename one")
    try:
        known = _known(remote)
    except FileNotFoundError:
        known = {}
    done = []
    with tempfile.TemporaryDirectory(prefix="gemmdb-push-") as folder:
        for path in tables:
            copy = Path(folder, path.name)
            with bounded.reading(path):
                shutil.copyfile(path, copy)
            try:
                one = manifest.listed(copy, path.name)
            except TableError as error:  # Of the copy.
                raise TableError(str(error).replace(str(copy), str(path))) from error
            say(f"uploading {path.name}, {one.size:,} bytes")
            remote.write(path.name, copy)
            known[path.name] = one
            done.append(Transferred(one.file, f"{remote.url}/{one.file}", "pushed", one.size, one.digest))
        listing = Path(folder, NAME)
        listing.write_text(manifest.text_of(known.values()))
        remote.write(NAME, listing)
    return done


def _check_target(target: Path, one: Listed, replace: bool) -> None:
    """Raise InputError for a file that a pull may not replace."""
    if not target.exists() or replace:
        return
    if not target.is_file():
        raise InputError(f"{target} is not a file; name another folder")
    found = trust.sha256_of(target)
    if found not in (one.sha256, _pulled(target.parent).get(target.name)):
        raise InputError(
            f"{target} has other rows, which a pull would lose: merge them with `gemmdb merge`, pull into another"
            " folder, or replace it with --replace"
        )


def _pull(remote: Remote, into: Path, one: Listed, say: Callable[[str], None]) -> Transferred:
    target = into / one.file
    if target.is_file() and trust.sha256_of(target) == one.sha256:
        return Transferred(one.file, str(target), "current", one.size, one.digest)
    part = into / f".{one.file}.{one.sha256[:16]}.download"
    say(f"downloading {one.file}, {one.size:,} bytes")
    try:
        resumed = _download(remote, one, part)
        try:
            rejected = manifest.rejection(part, one)
        except TableError as error:
            rejected = Rejected(str(error).replace(str(part), one.file))
        if rejected:
            part.unlink()
            raise InputError(f"{remote.url}/{one.file} was rejected, and nothing was replaced: {rejected}")
        journal = target.with_name(f"{target.name}-journal")
        if journal.exists() and not target.exists():  # SQLite would roll the old file's write back in the new file.
            raise InputError(f"{journal} is left over from a deleted file; remove it, and pull again")
        with held(target):
            file_locks.replace_file(target, part)
        with contextlib.suppress(OSError, InputError), replacing(into / PULLED) as noted:
            noted.write_text(json.dumps({**_pulled(into), one.file: one.sha256}, indent=1, sort_keys=True))
    except OSError as error:
        raise InputError(f"{target} cannot be written ({error.strerror or error}); check its folder") from error
    return Transferred(one.file, str(target), "pulled", one.size, one.digest, resumed)


def _download(remote: Remote, one: Listed, part: Path) -> int:
    """Complete the file `part`. Returns how many of its bytes were already present. Raises InputError if the sizes
    differ."""
    there = part.stat().st_size if part.is_file() else 0
    if there == one.size:
        return there
    there = there if there < one.size else 0
    resumed, done = there, there
    try:
        with part.open("r+b" if there else "wb") as file:
            for place, block in remote.blocks(one.file, there):
                resumed = min(resumed, place)
                done = place + len(block)
                if done > one.size:
                    break
                file.seek(place)
                file.write(block)
            file.truncate(min(done, one.size))
    except FileNotFoundError as error:
        raise InputError(f"{remote.url}/{one.file} is listed, but does not exist") from error
    if done > one.size:
        part.unlink()
        raise InputError(f"{remote.url}/{one.file} was rejected: it is larger than the manifest's entry")
    if done < one.size:
        raise InputError(f"{remote.url}/{one.file}: received only {done:,} of {one.size:,} bytes; pull again to resume")
    return resumed


def _pulled(folder: Path) -> dict[str, str]:
    """Return the sha256 of each file at pull time, by name; empty if the record is missing or malformed."""
    try:
        found = json.loads((folder / PULLED).read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return {str(name): str(sha) for name, sha in found.items()} if isinstance(found, dict) else {}
