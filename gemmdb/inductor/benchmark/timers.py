"""Timers: CUDA graphs on the GPU clock, and single calls on the host clock."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from resource import RUSAGE_SELF, getrusage
from time import perf_counter, perf_counter_ns
from typing import Any

import torch

from gemmdb.devices.detect import flush_bytes, last_level_cache_bytes
from gemmdb.table.measurement import Protocol
from gemmdb.table.stats import paired, turns

TRIES = 8
"""Maximum tries per sample to get an undisturbed one; per round, at most two per sample on average."""
SETTLE = 10
"""Maximum number of small parallel regions to run until all threads have their cores."""
CYCLES_PER_US = 3000
"""Cycles of a GPU's clock in a microsecond, at most."""
GRAPH_HELD_US = 100.0
"""How long the GPU is held before it starts a graph, which the host launches in the meantime. Otherwise the time would
include some of what the host takes, which varies by several microseconds."""
LAUNCH_US, MOST_LAUNCH_US, LAUNCH_MARGIN, LAUNCH_TRIES = 100.0, 1000.0, 1.3, 2
"""For how long the GPU is held for each single call: the first guess, the limit, the factor over what the last calls
took the host, and how often calls are repeated if the host took longer. A slow host takes 200 us for a call of
torch."""
STALL_US = 1000.0
"""A call that takes three times as long as the fastest one, and at least this much longer, has waited for a core. OS
time slices are milliseconds; noise from caches and clocks is far smaller."""


def captured(steps: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Capture what `steps` launches on the current stream, which must not be the default one. All of it must have run
    once before.

    torch.cuda.graph() would also collect garbage and empty the allocator's cache, which takes longer than the timing.
    """
    graph = torch.cuda.CUDAGraph()
    collected = gc.isenabled()
    gc.disable()  # Freeing garbage that holds GPU memory would end the capture.
    try:
        # Other threads of the program may allocate memory during the capture.
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            steps()
        finally:
            graph.capture_end()
    finally:
        if collected:
            gc.enable()
    return graph


Prepare = Callable[[int], object]
"""Prepares a call on one of several copies of the operands, by its index."""
Call = Callable[[int], object]
"""Makes the call on that copy."""


def in_turn(
    prepare: Prepare, calls: Sequence[Call], copies: int, protocol: Protocol, sample_us: float,
    enough: Callable[[Sequence[Sequence[float]]], bool],
) -> list[list[float]]:  # fmt: skip
    """Return samples of each call in microseconds, taken in turn on the current stream: the time of a CUDA graph of
    prepared calls minus that of one without the calls. All calls must have run once before.

    `copies`: the number of copies of the operands. `sample_us`: the maximum time of a graph with more than one call.
    `enough`: returns whether the samples so far suffice.
    """

    def step(call: Call | None, index: int) -> None:
        prepare(index)
        if call is not None:
            call(index)

    steps = [functools.partial(step, call) for call in (None, *calls)]
    torch.cuda.current_stream().synchronize()
    longest_us = max(single_us([functools.partial(one, 0) for one in steps]))
    count = max(1, min(protocol.unroll, int(sample_us / max(longest_us, 1.0))))
    graphs = [_graph(prepare, one, count, copies) for one in steps]
    for graph in graphs:
        graph.replay()
    samples: list[list[float]] = [[] for _ in calls]
    took = [0.0] * len(graphs)
    for index in range(protocol.samples):
        for which in turns(range(len(graphs)), index):
            took[which] = elapsed(graphs[which].replay)
        for found, us in zip(samples, took[1:], strict=True):
            found.append(max(us - took[0], 0.01) / count)
        if enough(samples):
            break
    return paired(samples)


def _graph(prepare: Prepare, step: Call, count: int, copies: int) -> torch.cuda.CUDAGraph:
    """Capture a graph of `count` steps on the current stream."""
    for index in range(2):
        prepare(index % copies)
    torch.cuda.current_stream().synchronize()

    def steps() -> None:
        for index in range(count):
            step(index % copies)

    return captured(steps)


def elapsed(work: Callable[[], object]) -> float:
    """Return the GPU time in microseconds of the one graph, or other short launch, of `work` on the current stream."""
    _hold(GRAPH_HELD_US)
    start, end = _timed(work)
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def single_us(
    calls: Sequence[Callable[[], object]], rounds: int = 1, before: Callable[[], object] | None = None
) -> list[float]:
    """Return the shortest GPU time of each call in microseconds, of `rounds` in turn on the current stream. `before`
    is launched before each call and is not timed. The GPU is held until the host has launched everything, so a slow
    host adds nothing."""
    count = rounds * len(calls)
    for _ in range(LAUNCH_TRIES):
        _hold(count * _launch_us[0])
        released, start = torch.cuda.Event(), perf_counter()
        released.record()
        events = [[_timed(call, before) for call in calls] for _ in range(rounds)]
        took_us, late = (perf_counter() - start) * 1e6, released.query()
        torch.cuda.current_stream().synchronize()
        _launch_us[0] = min(LAUNCH_MARGIN * took_us / count, MOST_LAUNCH_US)
        if not late:
            break
    return [min(start.elapsed_time(end) for start, end in found) * 1e3 for found in zip(*events, strict=True)]


_launch_us = [LAUNCH_US]
"""For how long the GPU is held for each of the next calls."""


def _timed(work: Callable[[], object], before: Callable[[], object] | None = None) -> tuple[Any, Any]:
    """Launch `before`, then `work` between two events, and return these."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    if before is not None:
        before()
    start.record()
    work()
    end.record()
    return start, end


def _hold(us: float) -> None:
    """Keep the current stream busy for so many microseconds."""
    torch.cuda._sleep(int(us * CYCLES_PER_US))


def cold_bytes(device: torch.device) -> int:
    """Return how many bytes to read to flush a device's last-level cache. Without an index, use the current GPU."""
    if device.type == "cuda":
        return flush_bytes(int(torch.cuda.get_device_properties(device).L2_cache_size))
    return flush_bytes(last_level_cache_bytes())


@dataclass
class Sampler:
    """Times single calls on a CPU. Before each call, `evict` flushes the caches, then all threads get their cores, then
    `touch` reloads the warm tensors. `patience`: how many disturbed samples may still be repeated."""

    evict: Callable[[], object]
    settle: Callable[[], None]
    patience: int

    @classmethod
    def of(cls, state: str, patience: int) -> Sampler:
        """Return the sampler for a cache state, `cold` or `hot`."""
        if state != "cold":
            return cls(lambda: None, _settler(), patience)
        buffer = torch.ones(cold_bytes(torch.device("cpu")) // 8, dtype=torch.int64)
        return cls(buffer.sum, _settler(), patience)

    def time(
        self, function: Callable[[list[Any]], Any], arguments: Sequence[Any], best_us: float,
        touch: Callable[[], object] | None = None,
    ) -> float:  # fmt: skip
        """Return the microseconds of one call of `function` on a list of the arguments, retrying a few times if other
        processes disturb it. `best_us`: the fastest call so far."""
        for _ in range(TRIES):
            self.evict()
            self.settle()
            if touch is not None:
                touch()
            given = list(arguments)
            switches = getrusage(RUSAGE_SELF).ru_nivcsw
            start = perf_counter_ns()
            result = function(given)
            us = (perf_counter_ns() - start) / 1e3
            undisturbed = getrusage(RUSAGE_SELF).ru_nivcsw == switches
            del result
            if self.patience == 0 or (undisturbed and us <= max(3 * best_us, best_us + STALL_US)):
                break
            self.patience -= 1
        return us


def _settler() -> Callable[[], None]:
    """Return a function that waits until all of torch's threads have a core. After a process switch, a thread may wait
    milliseconds for its core, which would count toward the next parallel region."""
    little = torch.zeros(65536)

    def region() -> float:
        start = perf_counter()
        little.neg_()
        return perf_counter() - start

    usual = sorted(region() for _ in range(20))[5]

    def settle() -> None:
        for _ in range(SETTLE):
            if region() < 3 * usual:
                return

    return settle
