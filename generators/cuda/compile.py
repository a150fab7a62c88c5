"""Compiles what candidates need, with or without a GPU present, into on-disk caches."""

from __future__ import annotations

import importlib.util
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmdb.config import Config
from gemmdb.generators.cuda import cutlass_build
from gemmdb.generators.cuda.emitted import Emission, only_emitted
from gemmdb.generators.cuda.part import Built, Part
from gemmdb.generators.cuda.render import Unit, plan
from gemmdb.problem import Problem


@dataclass(frozen=True)
class Compiled:
    """What compiling a unit gave: `kernel` (a triton CompiledKernel) or the reason it failed, and the seconds spent."""

    kernel: Any
    failure: str
    seconds: float


def compile_unit(unit: Unit, capability: int) -> Compiled:
    """Compile for compute capability `capability` (90 for sm90). Finished units come from Triton's on-disk cache."""
    start = time.perf_counter()
    divisible = {(i,): [["tt.divisibility", 16]] for i, (name, _) in enumerate(unit.args) if name in unit.divisible}
    try:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        source = ASTSource(fn=load(unit), signature=dict(unit.args), constexprs={}, attrs=divisible)
        options = {"num_warps": unit.warps, "num_stages": unit.stages}
        kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    except Exception as error:
        return Compiled(None, f"{type(error).__name__}: {error}", time.perf_counter() - start)
    return Compiled(kernel, "", time.perf_counter() - start)


@dataclass(frozen=True)
class Triton:
    """A unit as a Part: compiling it leaves the result in Triton's on-disk cache."""

    unit: Unit

    @property
    def key(self) -> str:
        """The unit's own."""
        return self.unit.key

    def build(self, capability: int) -> Built:
        """Compile the unit."""
        done = compile_unit(self.unit, capability)
        shared = int(done.kernel.metadata.shared) if done.kernel is not None else 0
        return Built(done.failure, done.seconds, shared)


def parts(problem: Problem, config: Config) -> list[Part]:
    """What has to be compiled before a config can run on a problem, by backend; nothing for ATen."""
    if only_emitted(config):
        return [Emission(problem, config)]
    if config.backend == "triton":
        return [Triton(launch.unit) for launch in plan(problem, config).launches]
    if config.backend == "cutlass":
        return [cutlass_build.library(problem, config)]
    return []


def warm(part: Part, capability: int) -> Built:
    """Build a part, in a pool's process."""
    return part.build(capability)


def load(unit: Unit) -> Any:
    """The jitted function of a unit. Triton reads sources from files, so the source is kept beside Triton's cache."""
    path = _folder() / f"gemmdb_{unit.key}.py"
    if not path.exists():
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
            file.write(unit.source)
        os.replace(file.name, path)  # noqa: PTH105
    spec = importlib.util.spec_from_file_location(f"gemmdb_{unit.key}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel


def _folder() -> Path:
    home = os.environ.get("TRITON_CACHE_DIR") or str(Path.home() / ".triton" / "cache")
    folder = Path(home) / "gemmdb"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
