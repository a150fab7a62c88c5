"""Cross-compilation of candidates for an arch that this machine lacks, to find their registers, shared memory and
faults."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from gemmdb.generators.measure.cuda.compilers import compile_unit
from gemmdb.generators.measure.cuda.render import Unit, plan
from gemmdb.kernels.config import Config
from gemmdb.key.problem import Problem
from gemmdb.rejected import Rejected
from gemmdb.table.measurement import one_line

_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")


@dataclass(frozen=True)
class Resources:
    """Resources of a compiled kernel. `registers`: per thread. `shared`: bytes of shared memory per program.
    `rejected`: why it cannot be a candidate."""

    registers: int
    shared: int
    rejected: Rejected | None = None


@dataclass
class CrossCompiler:
    """Compile each kernel once, for compute capability `capability` (90 for sm90) and `smem` bytes of shared memory per
    block."""

    capability: int
    smem: int
    _known: dict[str, Resources] = field(default_factory=dict)

    def resources(self, problem: Problem, config: Config) -> Resources:
        """Return the resources of the config's main kernel, and the first fault of any of its kernels."""
        units = [launch.unit for launch in plan(problem, config).launches]
        for unit in units:
            if unit.key not in self._known:
                self._known[unit.key] = self._compile(unit)
        found = [self._known[unit.key] for unit in units]
        rejected = next((one.rejected for one in found if one.rejected), None)
        return Resources(found[0].registers, found[0].shared, rejected)

    def _compile(self, unit: Unit) -> Resources:
        done = compile_unit(unit, self.capability)
        if done.kernel is None:
            return Resources(0, 0, Rejected(one_line(done.failure)))
        shared = int(done.kernel.metadata.shared)
        cubin = next(str(path) for name, path in done.kernel.metadata_group.items() if name.endswith(".cubin"))
        registers, stack = _usage(cubin)
        if shared > self.smem:
            reason = f"needs {shared} bytes of shared memory, {self.smem} are there"
            return Resources(registers, shared, Rejected(reason))
        return Resources(registers, shared, Rejected(f"spills {stack} bytes of registers") if stack else None)


def available() -> bool:
    """Whether triton is installed. It compiles without a GPU."""
    return importlib.util.find_spec("triton") is not None


def _usage(cubin: str) -> tuple[int, int]:
    """Return the registers and stack bytes of a kernel, as reported by Triton's cuobjdump."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    command = [str(tool), "--dump-resource-usage", cubin]
    reply = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    match = _USAGE.search(reply.stdout)
    if match is None:
        raise ValueError(f"cuobjdump gives no resource usage for {Path(cubin).name}")
    return int(match[1]), int(match[2])
