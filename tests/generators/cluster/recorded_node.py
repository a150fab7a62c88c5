"""A Backend for the nodes of a test's cluster: recorded outcomes after a short time, and problems that do harm."""

import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path

from kit.replay import Replay, ReplayBackend, rows_of

from gemmdb.generators.effort import Effort
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem

DEADLY_N, HANGING_N = 72, 80
"""The N of problems that kill the process of their actor, and of those that never end."""


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


class NodeMeasurer(Replay):
    """Answers after `delay` seconds, once the gate lets it."""

    def __init__(self, delay: float, gate: Gate | None) -> None:
        super().__init__([])
        self.delay, self.gate = delay, gate

    def measure(self, problem, configs, protocol, samples):
        if problem.n == DEADLY_N:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.gate is not None:
            self.gate.wait(problem)
        time.sleep(1000 if problem.n == HANGING_N else self.delay)
        self._rows |= {(row.problem, row.config): row for row in rows_of([problem])}
        return super().measure(problem, configs, protocol, samples)


class NodeBackend(ReplayBackend):
    """A CPU of which every node of a test's cluster has one."""

    def __init__(self, device: Device, delay: float = 0.02, gate: Gate | None = None) -> None:
        super().__init__([], device=replace(device, sku="Test CPU", isa="avx2"))
        self.delay, self.gate = delay, gate

    def measurer(self, worker: int, effort: Effort) -> NodeMeasurer:
        return NodeMeasurer(self.delay, self.gate)


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
