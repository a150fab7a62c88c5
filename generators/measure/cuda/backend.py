"""NVIDIA GPU backend of the generator."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from math import ceil
from pathlib import Path

from gemmdb.devices.detect import cuda
from gemmdb.errors import InputError
from gemmdb.generators.backend import Backend, Job, Space, silent
from gemmdb.generators.effort import Effort
from gemmdb.generators.measure.candidates import CachedSpace
from gemmdb.generators.measure.cuda import compilers, elementwise
from gemmdb.generators.measure.cuda.artifacts import Library, Triton, compiler, required_promptly
from gemmdb.generators.measure.cuda.measurer import CudaMeasurer, visible
from gemmdb.generators.measure.cuda.precompiler import Precompiler
from gemmdb.generators.measure.cuda.space import CudaSpace
from gemmdb.kernels import cutlass
from gemmdb.key.canonical import lazy
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain, installed
from gemmdb.table.measurement import Protocol

UNROLL = 20
"""Calls per graph, each on another copy of the operands. One replay has 5 to 7 us of overhead, and more copies average
out the effect of addresses."""
VERSION = 3
"""Version 1 timed all calls on operands at one address, version 2 ten calls on ten copies after flushes of 256 MiB."""
BUSY_PERCENT = 5
"""A GPU on which we run nothing is busy from this utilization in the last second on, as reported by nvidia-smi."""
DRIVER_FILE = Path("/proc/driver/nvidia/version")
_READINGS = ("driver_version", "clocks.sm", "clocks.mem", "power.limit", "temperature.gpu")


class CudaBackend(Backend):
    """The GPUs of this host that equal the first. Raises InputError without a GPU or without torch."""

    overlap = True
    chunk = 8
    """Small, so that the first jobs compile while the next are planned."""

    def __init__(self, device: Device | None = None) -> None:
        found, toolchain = device or cuda(), installed("cuda")
        if found is None or toolchain is None:
            raise InputError("building a table for a GPU needs a GPU, torch and triton")
        self.device: Device = found
        driver = loaded_driver() or str(self.provenance().get("driver_version", ""))
        self.toolchain: Toolchain = replace(toolchain, driver=driver)
        self.space: Space = CachedSpace(CudaSpace(cutlass.compiler() is not None and cutlass.headers() is not None))
        compilers.choose_ptxas()
        shared = int(found.figures.get("smem_bytes", 48 * 1024))
        self.compilers = Precompiler(found.capability, shared)
        self.say: Callable[[str], None] = silent

    @lazy
    def _gpus(self) -> list[int]:
        # Running nvidia-smi may take a second, and live tuning knows its GPU.
        return [index for index in range(len(_smi("--query-gpu=index")) or 1) if cuda(index) == self.device]

    def awaited(self, jobs: Sequence[Job]) -> tuple[int, Collection[Problem]]:
        wanted = ((job.problem, config) for job in jobs for config in job.legal if compiler(config) == "cutlass")
        left: dict[str, set[Problem]] = defaultdict(set)
        for problem, config in wanted:
            library = Library.of(problem, config)
            if not library.path.exists():
                left[library.key].add(problem)
        return ceil(len(left) / self.compilers.processes), set().union(*left.values())

    @property
    def workers(self) -> int:
        return len(self._gpus)

    def protocols(self, effort: Effort) -> Sequence[Protocol]:
        return [Protocol("graph", state, UNROLL, effort.samples, version=VERSION) for state in effort.states]

    def expect(self, problems: Sequence[Problem], effort: Effort) -> None:
        if isinstance(self.space, CachedSpace):  # A caller may replace it.
            self.space.compute(problems, self.device, effort)

    def begin(self, jobs: Sequence[Job]) -> None:
        """Start nvcc on the kernels of all jobs: each takes half a minute."""
        self.compilers.begin(jobs)

    def measurer(self, worker: int, effort: Effort) -> CudaMeasurer:
        return CudaMeasurer(self._gpus[worker], effort, self.compilers).start()

    def prompt_measurer(self, gpu: int, effort: Effort) -> CudaMeasurer:
        """Also starts the compile processes, with the kernel that all measurements need."""
        self.compilers.needs = required_promptly
        made = CudaMeasurer(gpu, effort, self.compilers).start(confirms=False)
        self.compilers.warm(Triton(elementwise.flush().unit))
        return made

    def busy(self) -> str:
        return working(_smi("--query-gpu=index,uuid,utilization.gpu"), {visible(gpu) for gpu in self._gpus})

    def close(self) -> None:
        self.compilers.close()

    def provenance(self) -> dict[str, object]:
        reply = _smi(f"--query-gpu={','.join(_READINGS)}")
        return dict(zip(_READINGS, (value.strip() for value in reply[0].split(",")), strict=False)) if reply else {}


def working(lines: Sequence[str], ours: Collection[str]) -> str:
    """Return a phrase on which of `ours` (numbers or UUIDs) are busy, from nvidia-smi lines: number, UUID, percent."""
    found = []
    for index, uuid, share in (line.split(", ") for line in lines if line.count(", ") == 2):
        if (index in ours or uuid in ours) and share.isdecimal() and int(share) >= BUSY_PERCENT:
            found.append(f"GPU {index} busy ({share}%)")
    return f"another program keeps {', '.join(found)}" if found else ""


def loaded_driver() -> str:
    """Return Linux's driver version, empty if unknown: nvidia-smi may take a second to start."""
    with suppress(OSError):
        found = re.search(r"\b\d{3,}\.\d+(?:\.\d+)?\b", DRIVER_FILE.read_text())
        return found[0] if found else ""
    return ""


def _smi(query: str) -> list[str]:
    """Return nvidia-smi's output for a query, one line per GPU; empty if it fails or is missing."""
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
    return []
