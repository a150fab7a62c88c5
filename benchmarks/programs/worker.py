"""What one measuring process does: the cold compile of one way, or the warm compiles and the timing of all ways."""

from __future__ import annotations

import functools
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import software
from benchmarks.programs import locks, timing
from benchmarks.programs.building import same
from benchmarks.programs.packages import missing
from benchmarks.programs.program import Built, Program, Step
from benchmarks.programs.suite import suite
from benchmarks.programs.ways import WAYS, Way, statistics_of
from gemmdb.inductor.comparison import difference

BLOCKS = 3
"""Steps that cannot be captured are timed in so many blocks of each way."""


@dataclass(frozen=True)
class Job:
    """One program on one device. `ways`: their names; a cold compile has one. `folder`: where the caches are. `lock`:
    that of the GPU. `seconds`: of timing."""

    program: str
    ways: tuple[str, ...]
    size: str
    device: str
    folder: str
    lock: str
    seconds: float

    @property
    def place(self) -> Path:
        """The folder of the caches."""
        return Path(self.folder)

    def using(self, alone: bool) -> Any:
        """The GPU, alone or not."""
        return locks.using(Path(self.lock), alone)


def why_not(program: Program, device: str) -> str:
    """Why this program cannot run here; empty if it can."""
    why = missing(program.needs)
    if device == "cpu":
        return why or program.gpu_only
    if torch.cuda.get_device_capability() < program.arch:
        return why or f"needs a GPU of compute capability {'.'.join(map(str, program.arch))}"
    return why


def cold(job: Job) -> dict[str, Any]:
    """The first call of a program, with empty caches, in seconds."""
    program, way = suite()[job.program], WAYS[job.ways[0]]
    if why := why_not(program, job.device):
        return {"skipped": why}
    os.environ.update(way.environment(job.place))
    with torch.set_grad_enabled(program.grad), job.using(alone=False):
        # What every process pays once is no part of a program's compile. gemmdb's share of it is: it is not loaded yet.
        torch.compile(lambda t: t + 1)(torch.ones(8, device=job.device))
        built = program.make(job.size, job.device)
        answered(built)
    with torch.set_grad_enabled(program.grad), job.using(alone=way.measures or program.tuned):
        way.enter(job.place)
        _, _, seconds = first_call(program, way, built)
    return {"cold_s": seconds, **_stats("stats", way)}


def warm(job: Job) -> dict[str, Any]:
    """Compile in all ways from the caches that the cold compiles left, then time all of them in turn."""
    program = suite()[job.program]
    if why := why_not(program, job.device):
        return {"skipped": why}
    found: dict[str, Any] = {"ways": {}, **software(), "torch": torch.__version__}
    with torch.set_grad_enabled(program.grad):
        with job.using(alone=False):
            torch.compile(lambda t: t + 1)(torch.ones(8, device=job.device))
            built = program.make(job.size, job.device)
            wanted = reference(program, built)
            runs, found["ways"] = _all(job, program, built, wanted)
        found["clock"] = "events: " + program.uncaptured if program.uncaptured else "graph"
        if program.uncaptured or job.device == "cpu":
            found["taken"] = _blocks(job, program, built, list(runs))
            return found
        with job.using(alone=True):
            found["taken"] = timing.in_turn(runs, job.seconds, job.device) if runs else {}
    return found


def reference(program: Program, built: Built) -> Any:
    """The outputs to compare with: those in fp32, or those of the eager step."""
    if built.reference is None:
        return answered(built)
    torch.manual_seed(0)
    built.reset()
    return built.reference()


def _all(job: Job, program: Program, built: Built, wanted: Any) -> tuple[dict[str, Step], dict[str, Any]]:
    """The steps that can be timed, and what became of each way."""
    runs: dict[str, Step] = {}
    facts: dict[str, Any] = {"eager": {"error": distance(wanted, answered(built))}}
    for name in (job.ways[0], *job.ways):  # The first one twice: a process pays once for what all ways share.
        way = WAYS[name]
        try:
            way.enter(job.place)
            run, answer, seconds = first_call(program, way, built)
            facts[name] = {
                "warm_s": seconds, "error": distance(wanted, answer), "worst": difference(wanted, answer),
                **_stats("warm_stats", way),
            }  # fmt: skip
            if not (program.uncaptured or job.device == "cpu"):
                run = timing.capture(run)
            runs[name] = run
        except Exception as error:
            facts[name] = {**facts.get(name, {}), "failure": said(error)}
    return runs, facts


def _blocks(job: Job, program: Program, built: Built, names: list[str]) -> dict[str, list[float]]:
    """Times of steps that cannot be captured. Only one way can be compiled at a time, so the ways take turns in
    blocks."""
    taken: dict[str, list[float]] = {name: [] for name in names}
    for index in range(BLOCKS):
        for name in names if index % 2 else reversed(names):
            with job.using(alone=False):
                WAYS[name].enter(job.place)
                run, _, _ = first_call(program, WAYS[name], built)
            with job.using(alone=True):
                taken[name] += timing.in_turn({name: run}, job.seconds / BLOCKS / len(names), job.device)[name]
    return taken


def first_call(program: Program, way: Way, built: Built) -> tuple[Step, Any, float]:
    """The compiled step, its outputs, and the seconds of its first call."""
    built.reset()
    torch.manual_seed(0)
    _wait()
    start = time.perf_counter()
    run = built.step(functools.partial(torch.compile, **way.options(program)))
    answer = run()
    _wait()
    return run, answer, time.perf_counter() - start


def answered(built: Built) -> Any:
    """The outputs of the step that is not compiled, from the program's first state."""
    built.reset()
    torch.manual_seed(0)
    return built.step(same)()


def _wait() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _stats(name: str, way: Way) -> dict[str, Any]:
    found = statistics_of(way)
    return {name: found} if found else {}


def distance(wanted: Any, found: Any) -> float:
    """The Euclidean distance of two outputs, over the length of the wanted one. NaN if one holds a NaN."""
    pairs = zip(torch.utils._pytree.tree_leaves(wanted), torch.utils._pytree.tree_leaves(found), strict=True)
    tensors = [(a.double(), b.double()) for a, b in pairs if isinstance(a, torch.Tensor)]
    length = sum(float(a.square().sum()) for a, _ in tensors)
    return float((sum(float((a - b).square().sum()) for a, b in tensors) / max(length, 1e-30)) ** 0.5)


def said(error: Exception) -> str:
    """The last line of an exception."""
    lines = f"{type(error).__name__}: {error}".strip().splitlines()
    return (lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}")[:500]
