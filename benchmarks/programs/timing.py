"""Time the steps of a program, each as one CUDA graph, in turn. Imports torch."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from gemmdb.table.stats import turns

HOPELESS = 20
"""A step that takes this many times as long as the fastest is timed a few times only."""
ROUNDS, FEWEST, FEW = 300, 9, 3
"""The most and the fewest rounds, and the samples of a hopeless step."""
SAMPLE_US = 1000.0
"""Shorter steps run several times within one sample."""
WARM_S = 0.3
"""Seconds of work before the first sample, so that the clock of the GPU has risen."""

Run = Callable[[], Any]


@dataclass(frozen=True)
class Captured:
    """A step as a CUDA graph. `kept`: what the graph reads and does not own."""

    graph: torch.cuda.CUDAGraph
    kept: list[Any] = field(repr=False)

    def __call__(self) -> None:
        """Run the step."""
        self.graph.replay()


def capture(run: Run) -> Captured:
    """The step in one CUDA graph. Raises what torch raises if it cannot be captured."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
        run()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # Other threads of Inductor and of gemmdb may use the GPU meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run()
    # Another way empties the caches of compiled code, and with them tensors that this graph still reads.
    kept = [one for one in gc.get_objects() if type(one) is torch.Tensor and one.is_cuda]
    return Captured(graph, [run, *kept])


def elapsed(run: Run, times: int, device: str) -> float:
    """Microseconds of one run, as the mean of `times` that follow each other."""
    if device == "cpu":
        began = time.perf_counter()
        for _ in range(times):
            run()
        return (time.perf_counter() - began) * 1e6 / times
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(times):
        run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / times


def in_turn(runs: Mapping[str, Run], seconds: float, device: str) -> dict[str, list[float]]:
    """Microseconds of each step in each round. Each round has the order of `turns`."""
    for run in runs.values():
        run()
    # The host may have been busy with something else once.
    first_us = {name: min(elapsed(run, 1, device) for _ in range(2)) for name, run in runs.items()}
    fastest = min(first_us.values())
    names = [name for name, us in first_us.items() if us <= HOPELESS * fastest]
    repeats = {name: max(1, math.ceil(SAMPLE_US / us)) for name, us in first_us.items()}
    _warm(runs[names[0]], device)
    taken: dict[str, list[float]] = {name: [] for name in runs}
    until, index = time.monotonic() + seconds, 0
    while index < FEWEST or (index < ROUNDS and time.monotonic() < until):
        for name in turns(names, index):
            taken[name].append(elapsed(runs[name], repeats[name], device))
        index += 1
    for name in set(runs) - set(names):
        taken[name] = [elapsed(runs[name], 1, device) for _ in range(FEW)]
    return taken


def _warm(run: Run, device: str) -> None:
    until = time.monotonic() + (WARM_S if device != "cpu" else 0)
    while time.monotonic() < until:
        elapsed(run, 1, device)
