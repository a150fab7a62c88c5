"""Builds an archive of CUTLASS kernels, several at once. A cache keeps what is compiled, so a later build goes on."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from gemmdb.errors import InputError
from gemmdb.generators.kernels.compiling import FLAGS, LINKED, Tools, compiled
from gemmdb.kernels import cutlass
from gemmdb.kernels.cutlass import entry
from gemmdb.kernels.cutlass.prebuilt import ARCH, INDEX, KINDS

_WHEN = (1980, 1, 1, 0, 0, 0)
"""The date of every member: the same kernels give the same bytes."""
Done = Callable[[int, int], None]
"""Is told how many kernels are compiled, and how many there will be."""


def cache() -> Path:
    """The folder of compiled kernels, one below for each set of tools and flags."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "gemmdb" / "kernels"


def build(units: Mapping[str, entry.Unit], tools: Tools, jobs: int, done: Done) -> dict[str, dict[str, Path]]:
    """Compile the units that the cache does not have, `jobs` at once, in their order. Returns the files of all by name
    and kind. Raises InputError if one fails; those that were done stay in the cache, also after Ctrl-C."""
    folder = cache() / tools.digest
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, Path]] = {}
    with ThreadPoolExecutor(jobs) as pool:
        waiting = {pool.submit(compiled, unit, tools, folder): name for name, unit in units.items()}
        try:
            for future in as_completed(waiting):
                found[waiting[future]] = future.result()
                done(len(found), len(units))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {name: found[name] for name in units}


def ready(units: Mapping[str, entry.Unit], tools: Tools) -> list[str]:
    """The names of the units that the cache has."""
    folder = cache() / tools.digest
    return [name for name in units if all((folder / f"{name}.{kind}").exists() for kind in KINDS)]


def write(files: Mapping[str, Mapping[str, Path]], tools: Tools, out: Path) -> None:
    """Write the archive of these files to `out`, which is replaced. Raises InputError if it cannot be written."""
    data = {name: {kind: files[name][kind].read_bytes() for kind in KINDS} for name in sorted(files)}
    kernels = {
        name: {"size": len(one["o"]), **{kind: _sha256(one[kind]) for kind in KINDS}} for name, one in data.items()
    }
    members = {name: b"".join(one.values()) for name, one in data.items()}
    provenance = {
        "arch": ARCH, "cuda": tools.cuda, "cutlass": tools.version, "flags": [*FLAGS, "/", *LINKED],
        "source": cutlass.digest("gemm"),
    }  # fmt: skip
    index = json.dumps({"provenance": provenance, "kernels": kernels}, indent=1, sort_keys=True) + "\n"
    part = out.with_name(f".{out.name}.{secrets.token_hex(4)}.part")
    try:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_LZMA) as archive:
            for name, content in {INDEX: index.encode(), **members}.items():
                archive.writestr(zipfile.ZipInfo(name, _WHEN), content, zipfile.ZIP_LZMA)
        part.replace(out)
    except OSError as error:
        raise InputError(f"{out} cannot be written ({error.strerror}); check its folder") from error
    finally:
        part.unlink(missing_ok=True)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
