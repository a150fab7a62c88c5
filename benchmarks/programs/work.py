"""The parts of a measurement of one program: the job, its first call, its outputs and their errors. Imports torch."""

from __future__ import annotations

import contextlib
import functools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree

from benchmarks.programs import locks
from benchmarks.programs.building import same
from benchmarks.programs.packages import missing
from benchmarks.programs.program import Built, Program, Step
from benchmarks.programs.ways import Way


@dataclass(frozen=True)
class Job:
    """One program on one device. `ways`: their names; a cold compile has one. `folder`: where the caches are. `lock`:
    that of the GPU. `seconds`: of timing. `blame`: the most GEMMs that are suspected if gemmdb is slower.
    `study`: the most GEMMs whose saving is compared with what their kernels save alone. `crowded`: what measures
    while it compiles does not wait for its turn. `source`: the file of the program, if it is not of the suite."""

    program: str
    ways: tuple[str, ...]
    size: str
    device: str
    folder: str
    lock: str
    seconds: float
    blame: int
    crowded: bool
    study: int = 0
    source: str = ""

    @property
    def place(self) -> Path:
        """The folder of the caches."""
        return Path(self.folder)

    def using(self, alone: bool) -> Any:
        """The GPU. Only what times waits for it: a compile runs few kernels, and would keep all timings waiting."""
        return locks.alone(Path(self.lock)) if alone else contextlib.nullcontext()

    def in_turns(self) -> contextlib.AbstractContextManager[locks.Turns]:
        """A compile whose timings wait for the GPU. A CPU has no kernels to itself while another process compiles, so
        there nothing is gained by it."""
        quiet = self.crowded or self.device == "cpu"
        return contextlib.nullcontext(locks.Turns(Path(self.lock))) if quiet else locks.in_turns(Path(self.lock))


def why_not(program: Program, device: str) -> str:
    """Why this program cannot run here; empty if it can."""
    why = missing(program.needs)
    if device == "cpu":
        return why or program.gpu_only
    if torch.cuda.get_device_capability() < program.arch:
        return why or f"needs a GPU of compute capability {'.'.join(map(str, program.arch))}"
    return why


def first_call(program: Program, way: Way, built: Built) -> tuple[Step, Any, float]:
    """The compiled step, its outputs, and the seconds of its first call."""
    built.reset()
    torch.manual_seed(0)
    waited()
    start = time.perf_counter()
    run = built.step(functools.partial(torch.compile, **way.options(program)))
    answer = run()
    waited()
    return run, answer, time.perf_counter() - start


def answered(built: Built) -> Any:
    """The outputs of the step that is not compiled, from the program's first state."""
    built.reset()
    torch.manual_seed(0)
    return built.step(same)()


def reference(built: Built) -> Any:
    """The outputs to compare with: those in fp32, or those of the step that is not compiled."""
    if built.reference is None:
        return answered(built)
    built.reset()
    torch.manual_seed(0)
    return built.reference()


def distance(wanted: Any, found: Any) -> float:
    """The Euclidean distance of two outputs, over the length of the wanted one. NaN if one holds a NaN."""
    pairs = zip(_pytree.tree_leaves(wanted), _pytree.tree_leaves(found), strict=True)
    difference = [a.double() - b.double() for a, b in pairs if isinstance(a, torch.Tensor)]
    return length(difference) / max(length(wanted), 1e-30)


def length(outputs: Any) -> float:
    """The Euclidean length of all tensors in the outputs together."""
    tensors = (one for one in _pytree.tree_leaves(outputs) if isinstance(one, torch.Tensor))
    return float(sum(float(one.double().square().sum()) for one in tensors) ** 0.5)


def emptied() -> None:
    """Give back the memory that only the step that is not compiled needed: other programs are on the same GPU."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def waited() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
