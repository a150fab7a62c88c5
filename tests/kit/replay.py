"""Recorded rows, and a Measurer and a Backend that answer from them, so that builds run without a device or a clock."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gemmdb.generators.backend import Backend, Candidate, Job, Measurer, Outcome, ignore, outcome
from gemmdb.generators.effort import Effort
from gemmdb.generators.measure.cpu.space import AUTO, template
from gemmdb.generators.progress import State
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain
from gemmdb.rejected import Rejected
from gemmdb.table.measurement import Measurement, Protocol, Status, Times
from gemmdb.table.reader import Table
from gemmdb.table.verdict import Verdict

DEVICE = Device("cpu", "cpu", "Test CPU", 2, isa="avx2")
TOOLCHAIN = Toolchain(torch="2.13.0", gemmdb="0.1.0")
CPP = template(AUTO, AUTO)
SPLIT_N = template((1, 2, 1), AUTO)
SPLIT_K = template((1, 1, 2), AUTO)
CONFIGS = (ATEN, CPP, SPLIT_N, SPLIT_K)
US = (100.0, 80.0, 60.0, 1.0)
"""What the CONFIGS take in `rows`, of which the last is wrong."""


def record(
    problem: Problem, config: Config, us: float, status: Status = Status.OK, aten_us: float = 100.0
) -> Measurement:
    """A recorded row with an interval of 1% on either side."""
    times = Times(us, us * 0.99, us * 1.01, 30, aten_us) if status in (Status.OK, Status.SLOW) else None
    protocol, detail = Protocol("host", "cold", 1, 30), "" if times else "recorded"
    return Measurement(problem, config, DEVICE, protocol, TOOLCHAIN, "recorded", status, times, 1e-7, 0.5, detail)


def rows_of(problems: Sequence[Problem]) -> list[Measurement]:
    """ATen 100 us, the template 80, split over N 60, and split over K wrong, for every problem."""
    return [
        record(problem, config, us, Status.WRONG if config == SPLIT_K else Status.OK)
        for problem in problems
        for config, us in zip(CONFIGS, US, strict=True)
    ]


class Replay(Measurer):
    """Answers with the first recorded row of a (problem, config). `calls`: the requests so far.

    A config without a row is an `error`, like a config that does not compile.
    """

    def __init__(self, rows: Iterable[Measurement]) -> None:
        self._rows: dict[tuple[Problem, Config], Measurement] = {}
        for row in rows:
            self._rows.setdefault((row.problem, row.config), row)
        self.calls: list[tuple[Problem, tuple[Config, ...], int]] = []
        self.proposals: Sequence[Config] = ()
        self.neighbours: Sequence[Config] = ()
        self.renewed = self._more = 0

    def prepare(self, jobs: Sequence[Job], ready: Callable[[Job], None] = ignore) -> None:
        """Report every job as ready at once."""
        for job in jobs:
            ready(job)

    def measure(
        self, problem: Problem, configs: Sequence[Config], protocol: Protocol, samples: int
    ) -> Sequence[Outcome]:
        """The recorded outcomes. A row that was dropped as slow counts as fully timed."""
        self.calls.append((problem, tuple(configs), samples))
        return [self._outcome(problem, config) for config in configs]

    def proposed(self, problem: Problem) -> Sequence[Config]:
        return self.proposals

    def near(self, problem: Problem, estimates: Sequence[Outcome]) -> Sequence[Config]:
        return self.neighbours

    def fresh(self) -> Replay:
        """A replay whose rows have one more sample than recorded, so that they are new rows. `renewed` counts these
        calls."""
        self.renewed += 1
        again = copy.copy(self)
        again._more = 1
        return again

    def _outcome(self, problem: Problem, config: Config) -> Outcome:
        row = self._rows.get((problem, config))
        if row is None:
            return Outcome(config, Status.ERROR, detail="not recorded")
        status = Status.OK if row.status is Status.SLOW else row.status
        times = replace(row.times, samples=row.times.samples + self._more) if row.times else None
        return replace(outcome(row), config=config, status=status, times=times)


class ReplaySpace:
    """CONFIGS for every problem, of which the last is illegal for single rows, and `more`."""

    def __init__(self, *more: Candidate) -> None:
        self.more = more

    def candidates(self, problem: Problem, device: Device, effort: Effort) -> Sequence[Candidate]:
        own = [Candidate(c, Rejected("one row") if c == SPLIT_K and problem.m == 1 else None) for c in CONFIGS]
        return [*own, *self.more]


class ReplayBackend(Backend):
    """A Backend whose measurers are Replays; all that it made are kept in `made`."""

    device, toolchain, space = DEVICE, TOOLCHAIN, ReplaySpace()
    chunk, overlap = 2, False

    def __init__(
        self,
        rows: Sequence[Measurement],
        workers: int = 1,
        replay: Callable[[Sequence[Measurement]], Replay] = Replay,
        **given: Any,
    ) -> None:
        self.rows, self._workers, self._replay, self.closed = rows, workers, replay, False
        self.made: list[Any] = []
        vars(self).update(given)

    @property
    def workers(self) -> int:
        return self._workers

    def protocols(self, effort: Effort) -> list[Protocol]:
        return [Protocol("host", state, 1, effort.samples) for state in effort.states]

    def begin(self, jobs: Sequence[Job]) -> None:
        self.begun = list(jobs)

    def measurer(self, worker: int, effort: Effort) -> Replay:
        made = self._replay(self.rows)
        self.made.append(made)
        return made

    def close(self) -> None:
        self.closed = True

    def provenance(self) -> dict[str, object]:
        return {"reading": 1}


class Slow(Replay):
    """Takes its time, so that a build can be hit in the middle."""

    delay = 0.05

    def measure(self, *args: Any) -> Sequence[Outcome]:
        time.sleep(self.delay)
        return super().measure(*args)


@dataclass(frozen=True)
class Code(Config):
    """What a compiler emits for a config."""


class Emitting(Replay):
    """Measures winners as emitted code, which takes `factor` times as long."""

    factor = 1.0

    def emitted(self, config: Config) -> Config:
        return config if config == ATEN else Code(config.backend, config.kernel, config.params)

    def _outcome(self, problem: Problem, config: Config) -> Outcome:
        found = super()._outcome(problem, Config(config.backend, config.kernel, config.params))
        if not isinstance(config, Code) or found.times is None:
            return replace(found, config=config)
        slow = {name: self.factor * getattr(found.times, name) for name in ("median_us", "low_us", "high_us")}
        return replace(found, config=config, times=replace(found.times, **slow))


def emits(job: Job) -> bool:
    """Whether emitted code is to be compiled."""
    return any(isinstance(config, Code) for config in job.legal)


class Never(Emitting):
    """The code of winners is never compiled."""

    def prepare(self, jobs: Sequence[Job], ready: Callable[[Job], None] = ignore) -> None:
        super().prepare([job for job in jobs if not emits(job)], ready)


class Watcher:
    """A Progress that keeps every state."""

    def __init__(self) -> None:
        self.states: list[State] = []

    def update(self, state: State) -> None:
        self.states.append(state)


def stored(path: Path) -> list[Measurement]:
    """The rows of a table."""
    with contextlib.closing(Table.open(path)) as table:
        return list(table.measurements())


def contents(path: Path) -> set[tuple[str, str, str]]:
    """What a table holds, without the times."""
    return {(row.problem.text, row.config.text, row.status.value) for row in stored(path)}


def verdict(path: Path, problem: Problem, device: Device = DEVICE) -> Verdict | None:
    """The verdict of a table on a problem."""
    with contextlib.closing(Table.open(path)) as table:
        return table.verdict(problem, device)
