"""Compiles our Triton kernels into on-disk caches, with or without a GPU, and finds them there again.

Nothing here imports torch: a hundred processes that compile would each take seconds for it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmdb.generators.measure.cuda.artifact import Built
from gemmdb.generators.measure.cuda.render import Unit


@dataclass(frozen=True)
class Compiled:
    """The result of compiling a unit: `kernel` (a triton CompiledKernel) or the reason it failed, and the seconds
    spent."""

    kernel: Any
    failure: str
    seconds: float


def compile_unit(unit: Unit, capability: int) -> Compiled:
    """Compile for compute capability `capability` (90 for sm90). Finished units come from Triton's on-disk cache."""
    start = time.perf_counter()
    known = _recall(unit, capability)
    if known is not None:
        return Compiled(known, "", time.perf_counter() - start)
    known_divisors = dict(unit.divisors)
    attributes = {
        (place,): [["tt.divisibility", known_divisors[name]]]
        for place, (name, _) in enumerate(unit.args)
        if name in known_divisors
    }
    try:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        source = ASTSource(fn=load(unit), signature=dict(unit.args), constexprs={}, attrs=attributes)
        options = {"num_warps": unit.warps, "num_stages": unit.stages}
        kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    except Exception as error:
        return Compiled(None, f"{type(error).__name__}: {error}", time.perf_counter() - start)
    _remember(unit, capability, kernel)
    return Compiled(kernel, "", time.perf_counter() - start)


@dataclass(frozen=True)
class _Source:
    """What a CompiledKernel asks its source for when it is launched."""

    signature: dict[str, str]
    constants: dict[Any, Any]


def build_launcher(unit: Unit, kernel: Any) -> None:
    """Compile the C code with which Triton launches a kernel, and Triton's own, into the on-disk cache. Otherwise the
    process that times would wait a third of a second for gcc at the first launch of each signature. Some versions of
    Triton have no such code."""
    with contextlib.suppress(Exception):  # The process that times reports it.
        from triton.backends.nvidia.driver import CudaLauncher, CudaUtils

        CudaUtils()
        CudaLauncher(_Source(dict(unit.args), {}), kernel.metadata)


def _remember(unit: Unit, capability: int, kernel: Any) -> None:
    """Note where Triton keeps a kernel. Triton would parse the source to find it again, which takes ten times as long
    as loading it."""
    group = {name: str(path) for name, path in kernel.metadata_group.items() if name.endswith((".json", ".cubin"))}
    _write(_record(unit, capability), json.dumps({"group": group, "hash": kernel.hash}))


def _recall(unit: Unit, capability: int) -> Any:
    """The kernel of a note, None when there is none or Triton's cache has lost the files."""
    try:
        from triton.compiler import CompiledKernel

        note = json.loads(_record(unit, capability).read_text())
        return CompiledKernel(_Source(dict(unit.args), {}), note["group"], note["hash"])
    except Exception:
        # If anything is wrong with a note, Triton can still compile the kernel.
        return None


def _record(unit: Unit, capability: int) -> Path:
    import triton

    return folder() / f"gemmdb_{unit.key}-{capability}-{triton.__version__}.json"


@dataclass(frozen=True)
class Triton:
    """A unit as an Artifact: compiling it leaves the result in Triton's on-disk cache."""

    unit: Unit

    @property
    def key(self) -> str:
        """The unit's own."""
        return self.unit.key

    @property
    def work(self) -> str:
        """See `Artifact.work`."""
        return ""

    def build(self, capability: int) -> Built:
        """Compile the unit, and the code that launches it."""
        done = compile_unit(self.unit, capability)
        if done.kernel is not None:
            build_launcher(self.unit, done.kernel)
        shared = int(done.kernel.metadata.shared) if done.kernel is not None else 0
        return Built(done.failure, done.seconds, shared)


def load(unit: Unit) -> Any:
    """The jitted function of a unit. Triton reads sources from files, so the source is kept beside Triton's cache."""
    path = folder() / f"gemmdb_{unit.key}.py"
    if not path.exists():
        _write(path, unit.source)
    spec = importlib.util.spec_from_file_location(f"gemmdb_{unit.key}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel


def _write(path: Path, text: str) -> None:
    """Write a file whole: other processes may be looking for it."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
        file.write(text)
    os.replace(file.name, path)  # noqa: PTH105


@functools.cache
def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def folder() -> Path:
    """Where sources and notes are kept, beside Triton's cache."""
    home = os.environ.get("TRITON_CACHE_DIR") or str(Path.home() / ".triton" / "cache")
    return _made(Path(home) / "gemmdb")
