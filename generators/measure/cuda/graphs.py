"""CUDA graphs of calls, flushes between them, and the clock that replays are timed with."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from gemmdb.generators.measure.cuda import elementwise
from gemmdb.generators.measure.cuda.calls import Call, launcher
from gemmdb.inductor.benchmark.graphs import captured
from gemmdb.inductor.benchmark.graphs import elapsed as once
from gemmdb.table.measurement import Protocol

WARMUP = 2


def capture(call: Call | None, protocol: Protocol, copies: int = 1, calls: int | None = None) -> torch.cuda.CUDAGraph:
    """A graph of `calls` calls (default: the protocol's `unroll`) on the copies in turn, each after a flush unless the
    cache is hot. None stands for no call. With a hot cache, all calls use the same operands."""
    calls = calls or protocol.unroll
    turns = 1 if protocol.l2 == "hot" else copies
    flush: Callable[[], None] = lambda: None  # noqa: E731
    if protocol.l2 != "hot":
        data, sink = flush_buffer(), sink_buffer()
        names = {"data": data, "sink": sink}
        flush = launcher(elementwise.flush(), names, {"elements": elementwise.FLUSH_WORDS})

    def steps(count: int) -> None:
        for index in range(count):
            flush()
            if call is not None:
                call(index % turns)

    stream = _capture_stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        steps(min(WARMUP, calls))
        stream.synchronize()
        graph = captured(functools.partial(steps, calls))
    torch.cuda.current_stream().wait_stream(stream)
    return graph


@functools.cache
def _capture_stream() -> torch.cuda.Stream:
    # One for all captures: cuBLAS keeps a workspace per stream.
    return torch.cuda.Stream()


def elapsed(graph: torch.cuda.CUDAGraph) -> float:
    """Microseconds of one replay."""
    return once(graph.replay)


@functools.cache
def sink_buffer() -> torch.Tensor:
    """One int32 that a kernel which only reads may write."""
    return torch.zeros(1, dtype=torch.int32, device="cuda")


@functools.cache
def flush_buffer() -> torch.Tensor:
    """The buffer that a flush reads."""
    return torch.zeros(elementwise.FLUSH_WORDS, dtype=torch.int32, device="cuda")
