"""CUTLASS kernels that are compiled in advance: an archive beside the shipped tables, made by `gemmdb kernels build`.

An archive is a ZIP file. Each kernel is in it twice: as an object, which AOTInductor links into a package, and behind
that as a shared library, which a process loads. Both hold the same machine code, so together they are hardly larger
than one. It is code, so it is read from gemmdb's own folder alone, never from where the user's tables are.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmdb import trust
from gemmdb.errors import InputError, TableError
from gemmdb.kernels import cutlass
from gemmdb.kernels.cutlass import entry
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain, major

if TYPE_CHECKING:
    from gemmdb.kernels.config import Config

ARCH = "sm90"
"""The only GPUs with this kernel."""
KINDS = ("o", "so")
INDEX = "index.json"
LOADING = 1
"""The compile cost of a kernel that is there: it is copied and loaded within milliseconds."""
_MOST_BYTES = 8 << 20
_KEPT = 4096
_FOLDER = Path(__file__).parents[2] / "tables"
_NAME = re.compile(r"gemmdb_cutlass_[0-9a-f]{24}")


@dataclass(frozen=True, eq=False)
class Archive:
    """One archive. `digests`: by kernel and kind, the SHA-256 of its file. `sizes`: by kernel, the bytes of the object.
    `provenance`: what compiled it: `cuda`, the version of nvcc, `cutlass`, `flags`, `source`. `costs`: what `cost` said
    before."""

    path: Path
    digests: Mapping[str, Mapping[str, str]]
    sizes: Mapping[str, int]
    provenance: Mapping[str, Any]
    costs: dict[object, int] = field(default_factory=dict, repr=False)

    @classmethod
    def open(cls, path: Path) -> Archive:
        """The archive at `path`, without its kernels. Raises TableError if it is none."""
        try:
            found = json.loads(_member(path, INDEX))
            kernels, provenance = found["kernels"], found["provenance"]
            digests = {name: {kind: str(one[kind]) for kind in KINDS} for name, one in kernels.items()}
            sizes = {name: int(one["size"]) for name, one in kernels.items()}
            good = all(_NAME.fullmatch(name) for name in digests) and isinstance(provenance["cuda"], str)
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
            raise TableError(f"{path}: its {INDEX} is malformed: {error}") from error
        if not good:
            raise TableError(f"{path}: its {INDEX} is malformed")
        return cls(path, digests, sizes, provenance)

    def read(self, name: str, kind: str) -> bytes:
        """A kernel as one of KINDS. Raises TableError if it is not what the index says."""
        both, size = _member(self.path, name), self.sizes[name]
        data = both[:size] if kind == "o" else both[size:]
        if hashlib.sha256(data).hexdigest() != self.digests[name][kind]:
            raise TableError(f"{self.path}: {name} is not what {INDEX} says")
        return data

    def runs_with(self, toolchain: Toolchain | None) -> bool:
        """Whether this software loads it: CUDA of the same major version, whose runtime the kernels call. True where
        the software is not known."""
        return toolchain is None or major(toolchain.cuda) == major(str(self.provenance["cuda"]))


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
    text = json.dumps(found.digests, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def cost(config: Config, problem: Problem, toolchain: Toolchain | None) -> int:
    """What compiling a CUTLASS `config` for `problem` costs, on the scale of `Kernel.cost`."""
    found = archive()
    if found is None or not found.runs_with(toolchain):
        return config.spec.cost
    key = config, problem.op, problem.family
    known = found.costs.get(key)
    if known is None:
        if len(found.costs) >= _KEPT:
            found.costs.clear()
        known = found.costs[key] = LOADING if name(config, problem) in found.digests else config.spec.cost
    return known


def find(source: str) -> str:
    """The name of the kernel that a CUDA source is, if the shipped archive has it; empty otherwise."""
    found = archive()
    named = _NAME.search(source) if found is not None else None
    return named[0] if found is not None and named is not None and named[0] in found.digests else ""


def name(config: Config, problem: Problem, vectors: cutlass.Vectors | None = None) -> str:
    """The name of the kernel for a legal config on a problem; `vectors` as in `macros`."""
    return _named(tuple(cutlass.macros(config, problem, vectors).items()))


@functools.lru_cache(maxsize=4096)
def _named(macros: tuple[tuple[str, int | str], ...]) -> str:
    return unit(dict(macros)).name


def unit(macros: Mapping[str, int | str]) -> entry.Unit:
    """What is compiled in advance for these macros."""
    has = {"scale": macros["SCALE"], "row_scale": macros["ROW_SCALE"], "bias": macros["BIAS"]}
    operands = [one for one in entry.OPERANDS if has.get(one, True)]
    return entry.apart(cutlass.rendered(macros), operands)


def _member(path: Path, member: str) -> bytes:
    import lzma  # Imported where they are used: most lookups are not about CUTLASS.
    import struct
    import zipfile

    damage = (
        OSError, KeyError, ValueError, EOFError, RuntimeError, MemoryError, struct.error, zipfile.BadZipFile,
        lzma.LZMAError,
    )  # fmt: skip
    try:
        with zipfile.ZipFile(path) as opened:
            about = opened.getinfo(member)
            if about.file_size > _MOST_BYTES or about.compress_type != zipfile.ZIP_LZMA:
                raise TableError(f"{path}: {member} is too large, or not packed as gemmdb packs it")
            return opened.read(member)
    except damage as error:
        raise TableError(f"{path}: {error}") from error
