"""What the processes of `simulate` run: compilers and a GPU that sleep. Imports no torch.

The artifacts that are built at the same time share CORES processors: if there are more, each takes longer.
"""

from __future__ import annotations

import functools
import hashlib
import mmap
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gemmdb.generators.measure.cuda.artifacts import Built
from gemmdb.generators.measure.cuda.measurer import Loaded, Round
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Protocol, Status

LOAD, CORES, SECONDS = "GEMMDB_SIMULATED_LOAD", "GEMMDB_SIMULATED_CORES", "GEMMDB_SIMULATED_SECONDS"
"""The environment of the processes: a file with one byte per process id, which is 1 while that process builds; the
number of processors; the seconds of an estimate, a full measurement and a confirmation."""
PIDS = 65536
STEP_S = 0.5
FAVOUR = {"cutlass": 0.08}
"""How much faster the candidates of a backend are than the others, so that a fifth of them win, as on an H200."""


@dataclass(frozen=True)
class Sleeping:
    """An artifact that takes `seconds` of a processor."""

    key: str
    seconds: float
    work: str = ""
    optional: bool = False

    def build(self, capability: int) -> Built:
        """Sleep."""
        load, cores, mine = _load(), int(os.environ[CORES]), os.getpid() % PIDS
        start, left = time.monotonic(), self.seconds
        load[mine] = 1
        while left > 0:
            share = min(1.0, cores / load[:].count(1))
            step = min(left / share, STEP_S)
            time.sleep(step)
            left -= step * share
        load[mine] = 0
        return Built("", time.monotonic() - start, 1024)


def begin(inductor: bool) -> None:
    """Sleep as long as a process that times takes to start."""
    time.sleep(3)


def expect(problem: Problem, configs: Sequence[Config]) -> None:
    """Nothing is loaded before it is timed."""


def measure(problem: Problem, configs: Sequence[Config], protocol: Protocol, samples: int) -> Round:
    """Sleep; the times come from a hash of problem and config."""
    estimate, full, confirmation = map(float, os.environ[SECONDS].split(","))
    took = estimate if samples < protocol.samples else confirmation if len(configs) == 2 else full
    time.sleep(took)
    us = {config: [_us(problem, config) + 0.001 * i for i in range(samples)] for config in configs}
    return Round({config: Loaded(Status.OK, 1e-3) for config in configs}, us, took * 1e6)


def _us(problem: Problem, config: Config) -> float:
    if config == ATEN:
        return 15.0
    digest = hashlib.sha256(f"{problem.text} {config.text}".encode()).digest()
    return 10 * (1 + int.from_bytes(digest[:4], "big") / 2**32 - FAVOUR.get(config.backend, 0.0))


@functools.cache
def _load() -> mmap.mmap:
    with Path(os.environ[LOAD]).open("r+b") as file:
        return mmap.mmap(file.fileno(), PIDS)


def proposed(problem: Problem, most: int) -> list[Config]:
    """No library is there to propose anything."""
    return []


def near(problem: Problem, best: Sequence[Config], known: Sequence[Config], most: int) -> list[Config]:
    """No library is there."""
    return []
