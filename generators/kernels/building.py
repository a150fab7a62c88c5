"""Compiles CUTLASS kernels, several at once. A cache keeps what is compiled, so a later build goes on."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from gemmdb.generators.kernels.compiling import Tools, compiled
from gemmdb.kernels.cutlass import entry
from gemmdb.kernels.cutlass.archive import KINDS

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
