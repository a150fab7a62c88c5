"""CUTLASS kernels that are compiled in advance: an archive beside the shipped tables, made by `gemmdb kernels build`.

It is code, so it is read from gemmdb's own folder alone, never from where the user's tables are.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from gemmdb import trust
from gemmdb.errors import InputError, TableError
from gemmdb.kernels import cutlass
from gemmdb.kernels.cutlass import entry
from gemmdb.kernels.cutlass.archive import NAME, Archive
from gemmdb.kernels.kernel import ConfigLike
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain

ARCH = "sm90"
"""The only GPUs with these kernels."""
LOADING = 1
"""The compile cost of a kernel that is there: it is copied and loaded within milliseconds."""
_KEPT = 4096
_FOLDER = Path(__file__).parents[2] / "tables"


def shipped(arch: str = ARCH) -> Path:
    """Where the archive for `arch` lies, if there is one."""
    return _FOLDER / f"kernels-{arch}.zip"


@functools.cache
def archive() -> Archive | None:
    """The shipped archive, opened once per process; None if there is none, if it cannot be read, or if it is not what
    the manifest beside it says. One that was built here is in no manifest."""
    path = shipped()
    if not path.exists():  # Most processes need not import what opens one.
        return None
    try:
        known = trust.shipped(path.parent).get(path.name)
        return Archive.open(path) if known in (None, trust.sha256_in_use(path)) else None
    except (TableError, InputError, OSError, ValueError):
        return None


def identity() -> str:
    """What compile-cache keys contain about the archive: cached code may need it. Empty if there is none."""
    found = archive()
    if found is None:
        return ""
    text = json.dumps({name: place.sha256 for name, place in found.kernels.items()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def cost(config: ConfigLike, problem: Problem, toolchain: Toolchain | None) -> int:
    """What compiling a CUTLASS `config` for `problem` costs, on the scale of `Kernel.cost`."""
    found = archive()
    if found is None or not found.runs_with(toolchain):
        return config.spec.cost
    key = config, problem.op, problem.family
    known = found.costs.get(key)
    if known is None:
        if len(found.costs) >= _KEPT:
            found.costs.clear()
        known = found.costs[key] = LOADING if name(config, problem) in found.kernels else config.spec.cost
    return known


def find(source: str) -> str:
    """The name of the kernel that a CUDA source is, if the shipped archive has it; empty otherwise."""
    found = archive()
    named = NAME.search(source) if found is not None else None
    return named[0] if found is not None and named is not None and named[0] in found.kernels else ""


def name(config: ConfigLike, problem: Problem, vectors: cutlass.Vectors | None = None) -> str:
    """The name of the kernel for a legal config on a problem; `vectors` as in `macros`."""
    return _named(tuple(cutlass.macros(config, problem, vectors).items()))


@functools.lru_cache(maxsize=4096)
def _named(macros: tuple[tuple[str, int | str], ...]) -> str:
    return unit(dict(macros)).name


def unit(macros: Mapping[str, int | str]) -> entry.Unit:
    """What is compiled in advance for these macros."""
    has = {one: macros.get(one.upper(), 0) for one in ("scale", "row_scale", "bias", "zeros")}
    operands = [one for one in entry.OPERANDS if has.get(one, True)]
    return entry.apart(cutlass.rendered(macros), operands)
