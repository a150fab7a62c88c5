"""A Backend for the nodes of a test's cluster: recorded outcomes after a short time, and problems that do harm."""

import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path

from gemmdb.generators.backend import Candidate, Job, Outcome
from gemmdb.generators.effort import Effort
from gemmdb.generators.measure.cpu.space import AUTO, template
from gemmdb.kernels.config import ATEN
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain
from gemmdb.rejected import Rejected
from gemmdb.table.measurement import Protocol, Status, Times

CONFIGS = (ATEN, template(AUTO, AUTO), template((1, 2, 1), AUTO), template((1, 1, 2), AUTO))
US = dict(zip(CONFIGS, (100.0, 80.0, 60.0, 1.0), strict=True))
DEADLY_N, HANGING_N = 72, 80
"""The N of problems that kill the process of their actor, and of those that never end."""


class Space:
    """Four configs for every problem, of which the last is illegal for single rows."""

    def candidates(self, problem: Problem, device: Device, effort: Effort) -> list[Candidate]:
        return [Candidate(c, Rejected("one row") if c == CONFIGS[3] and problem.m == 1 else None) for c in CONFIGS]


@dataclass(frozen=True)
class Gate:
    """Holds measurements until the file `open` is in `folder`. Those of problems of up to `free` rows pass. A process
    that is held leaves a file there, named after its id."""

    folder: str
    free: int = 0

    def wait(self, problem: Problem) -> None:
        folder = Path(self.folder)
        if problem.m > self.free and not (folder / "open").exists():
            (folder / str(os.getpid())).touch()
            while not (folder / "open").exists():
                time.sleep(0.02)


class Measurer:
    """Answers after `delay` seconds, once the gate lets it."""

    busy_s = None

    def __init__(self, delay: float, gate: Gate | None, more: int = 0) -> None:
        self.delay, self.gate, self.more = delay, gate, more

    def prepare(self, jobs, ready=lambda job: None):
        for job in jobs:
            ready(job)

    def measure(self, problem, configs, protocol, samples):
        if problem.n == DEADLY_N:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.gate is not None:
            self.gate.wait(problem)
        time.sleep(1000 if problem.n == HANGING_N else self.delay)
        return [self._outcome(config, samples) for config in configs]

    def _outcome(self, config, samples) -> Outcome:
        us = US[config]
        if us == 1.0:
            return Outcome(config, Status.WRONG, error=1e-7, detail="recorded")
        return Outcome(config, Status.OK, Times(us, us * 0.99, us * 1.01, samples + self.more, 100.0), 1e-7, 0.5)

    def available(self):
        return True

    def ready(self, limit_s):
        return True

    def compiled(self, problem, config):
        return True

    def expect(self, problem, configs):
        pass

    def emitted(self, config):
        return config

    def fresh(self):
        return Measurer(self.delay, self.gate, self.more + 1)

    def close(self):
        pass


class NodeBackend:
    """A CPU of which every node of a test's cluster has one."""

    workers, chunk, overlap = 1, 2, False
    space = Space()
    toolchain = Toolchain(torch="2.13.0", gemmdb="0.1.0")

    def __init__(self, device: Device, delay: float = 0.02, gate: Gate | None = None) -> None:
        self.device, self.delay, self.gate = replace(device, sku="Test CPU", isa="avx2"), delay, gate

    def protocols(self, effort: Effort) -> list[Protocol]:
        return [Protocol("host", state, 1, effort.samples) for state in effort.states]

    def begin(self, jobs: list[Job]) -> None:
        pass

    def measurer(self, worker: int, effort: Effort) -> Measurer:
        return Measurer(self.delay, self.gate)

    def busy(self) -> str:
        return ""

    def close(self) -> None:
        pass

    def provenance(self) -> dict[str, object]:
        return {"reading": 1}


class Frail:
    """An actor whose process ends when it begins, the first `deaths` times. Each beginning adds a byte to `log`."""

    def begin(self, log: str, deaths: int) -> None:
        with open(log, "ab") as file:
            file.write(b".")
            begun = file.tell()
        if begun <= deaths:
            os.kill(os.getpid(), signal.SIGKILL)

    def number(self) -> int:
        return 7
