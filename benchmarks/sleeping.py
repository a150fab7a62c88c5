"""Compilers and a GPU that only sleep, for `build_simulation.py`: what its processes run. Imports no torch.

Artifacts share CORES processors: when more are built at once, all take longer.
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

from gemmdb.generators.measure.cuda.artifact import Built
from gemmdb.generators.measure.cuda.trial import Loaded, Trial
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Protocol, Status

LOAD, CORES, SECONDS = "GEMMDB_SIMULATED_LOAD", "GEMMDB_SIMULATED_CORES", "GEMMDB_SIMULATED_SECONDS"
"""The environment of the processes: a file with one byte per process id, 1 while it builds; how many processors there
are; how long an estimate, a full measurement and a confirmation take."""
PIDS = 65536
STEP_S = 0.5
FAVOUR = {"cutlass": 0.08}
"""How much better than others the candidates of a backend are, so that as many of them win as on an H200: a fifth."""


@dataclass(frozen=True)
class Sleeping:
    """An artifact that takes so many seconds of a processor."""

    key: str
    seconds: float
    work: str = ""

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
    """A process that times takes a few seconds to start."""
    time.sleep(3)


def trial(problem: Problem, configs: Sequence[Config], protocol: Protocol, samples: int) -> Trial:
    """Sleep; times by hash."""
    estimate, full, confirmation = map(float, os.environ[SECONDS].split(","))
    took = estimate if samples < protocol.samples else confirmation if len(configs) == 2 else full
    time.sleep(took)
    us = {config: [_us(problem, config) + 0.001 * i for i in range(samples)] for config in configs}
    return Trial({config: Loaded(Status.OK, 1e-3) for config in configs}, us, took * 1e6)


def _us(problem: Problem, config: Config) -> float:
    if config == ATEN:
        return 15.0
    digest = hashlib.sha256(f"{problem.text} {config.text}".encode()).digest()
    return 10 * (1 + int.from_bytes(digest[:4], "big") / 2**32 - FAVOUR.get(config.backend, 0.0))


@functools.cache
def _load() -> mmap.mmap:
    with Path(os.environ[LOAD]).open("r+b") as file:
        return mmap.mmap(file.fileno(), PIDS)
