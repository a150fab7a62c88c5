"""Whose turn a GPU is to time: one process at a time."""

from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold the lock of a GPU, which ends with the process. Only what times holds it: a compile of another process runs
    few kernels, and would keep all timings waiting for minutes."""
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@dataclass
class Turns:
    """What waits for the lock at `path` before it times. `waited_s`: the seconds so far."""

    path: Path
    waited_s: float = 0.0
    _within: threading.local = field(default_factory=threading.local, repr=False)

    def take(self, timing: Callable[..., Any]) -> Callable[..., Any]:
        """`timing`, alone on the GPU."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._within, "held", False):  # One way to time calls another.
                return timing(*args, **kwargs)
            began = time.monotonic()
            with alone(self.path):
                self.waited_s += time.monotonic() - began
                self._within.held = True
                try:
                    return timing(*args, **kwargs)
                finally:
                    self._within.held = False

        return timed


@contextmanager
def in_turns(path: Path) -> Iterator[Turns]:
    """Within it, each timing of Inductor and each search or trial of gemmdb waits for the lock, and compiling does not.
    So the programs of a GPU are compiled side by side also in the ways that measure."""
    from torch._inductor.runtime.benchmarking import benchmarker

    from gemmdb.inductor.benchmark import algorithm_trial, client, limits, trial
    from gemmdb.phases import PHASES

    turns = Turns(path)
    places = (client, "tune"), (trial, "run"), (algorithm_trial, "race")
    timing = [(owner, name, getattr(owner, name)) for owner, name in places]
    clock, watch = limits.now, PHASES.clock
    benchmarker.benchmark_gpu = turns.take(benchmarker.benchmark_gpu)
    for owner, name, function in timing:
        setattr(owner, name, turns.take(function))
    # What a graph may wait for trials is not used up by the trials of other programs, which are no phase either.
    limits.now, PHASES.clock = (lambda: clock() - turns.waited_s), (lambda: watch() - turns.waited_s)
    try:
        yield turns
    finally:
        del benchmarker.benchmark_gpu
        for owner, name, function in timing:
            setattr(owner, name, function)
        limits.now, PHASES.clock = clock, watch
