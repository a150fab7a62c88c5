"""Recorded rows, and a Backend that answers from them, so that builds run in milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gemmdb.generators.backend import Candidate, Job
from gemmdb.generators.build.build import BuildRequest
from gemmdb.generators.effort import Effort
from gemmdb.generators.measure.cpu.space import AUTO, template
from gemmdb.generators.measure.replay import Replay
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain
from gemmdb.rejected import Rejected
from gemmdb.table.measurement import Measurement, Protocol, Status, Times

DEVICE = Device("cpu", "cpu", "Test CPU", 2, isa="avx2")
TOOLCHAIN = Toolchain(torch="2.13.0", gemmdb="0.1.0")
CPP = template(AUTO, AUTO)
SPLIT_N = template((1, 2, 1), AUTO)
SPLIT_K = template((1, 1, 2), AUTO)
CONFIGS = (ATEN, CPP, SPLIT_N, SPLIT_K)


def record(
    problem: Problem, config: Config, us: float, status: Status = Status.OK, aten_us: float = 100.0
) -> Measurement:
    """A recorded row with an interval of 1% on either side."""
    times = Times(us, us * 0.99, us * 1.01, 30, aten_us) if status in (Status.OK, Status.SLOW) else None
    detail = "" if times else "recorded"
    return Measurement(
        problem,
        config,
        DEVICE,
        Protocol("host", "cold", 1, 30),
        TOOLCHAIN,
        "recorded",
        status,
        times,
        1e-7,
        0.5,
        detail,
    )


class ReplaySpace:
    """Four configs for every problem, of which the last is illegal for single rows."""

    def candidates(self, problem: Problem, device: Device, effort: Effort) -> Sequence[Candidate]:
        return [Candidate(c, Rejected("one row") if c == SPLIT_K and problem.m == 1 else None) for c in CONFIGS]


class ReplayBackend:
    """A Backend whose measurers are Replays; all that it made are kept in `made`."""

    device, toolchain, space = DEVICE, TOOLCHAIN, ReplaySpace()
    chunk, overlap = 2, False

    def __init__(
        self, rows: Sequence[Measurement], workers: int = 1, replay: Callable[[Sequence[Measurement]], Replay] = Replay
    ) -> None:
        self.rows, self.workers, self.made, self._replay = rows, workers, [], replay
        self.closed = False

    def protocols(self, effort: Effort) -> list[Protocol]:
        return [Protocol("host", state, 1, effort.samples) for state in effort.states]

    def begin(self, jobs: Sequence[Job]) -> None:
        self.begun = list(jobs)

    def prompt_measurer(self, gpu: int, effort: Effort) -> Replay:
        return self.measurer(0, effort)

    def measurer(self, worker: int, effort: Effort) -> Replay:
        self.made.append(self._replay(self.rows))
        return self.made[-1]

    def busy(self) -> str:
        return ""

    def close(self) -> None:
        self.closed = True

    def provenance(self) -> dict[str, object]:
        return {"reading": 1}


@pytest.fixture
def problems() -> list[Problem]:
    sizes = [1, 2, 4, 8, 16, 32, 64]
    return [Problem.gemm("mm", m=m, n=64, k=64, dtype="fp32", constant_weight=True) for m in sizes]


@pytest.fixture
def rows(problems: list[Problem]) -> list[Measurement]:
    """ATen 100 us, the template 80, split over n 60, and split over k wrong, for every problem."""
    return [
        record(problem, config, us, Status.WRONG if config == SPLIT_K else Status.OK)
        for problem in problems
        for config, us in zip(CONFIGS, (100.0, 80.0, 60.0, 1.0), strict=True)
    ]


@pytest.fixture
def replay_backend() -> type[ReplayBackend]:
    return ReplayBackend


@pytest.fixture
def recorded() -> Callable[..., Measurement]:
    return record


@pytest.fixture
def shapes_file(tmp_path: Path, problems: list[Problem]) -> Path:
    """The problems as a workload."""
    from gemmdb.workload import entries

    path = tmp_path / "shapes.jsonl"
    entries.append(path, [entries.Entry(problem) for problem in problems])
    return path


@pytest.fixture
def request_(shapes_file: Path, tmp_path: Path) -> BuildRequest:
    """A request to build them into a file of its own."""
    return BuildRequest(arch="cpu", shapes=str(shapes_file), out=tmp_path / "out" / "table.db")
