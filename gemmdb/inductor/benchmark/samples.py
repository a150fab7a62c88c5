"""Trials on a GPU: CUDA graphs of a few calls, replayed in turn, by the clock of the GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from gemmdb.devices.cold_cache import flush_bytes
from gemmdb.inductor.benchmark.subgraph import extent, sizes
from gemmdb.inductor.benchmark.timing import captured, elapsed
from gemmdb.inductor.benchmark.trial import Trial, clear, differ, inputs
from gemmdb.inductor.lower.adapter.emission import Function
from gemmdb.phases import PHASES
from gemmdb.table.measurement import Protocol

PROTOCOL = Protocol("graph", "cold", 10, 15, version=4)
"""As a build's protocol, except that what the graph has just computed is in the cache: after each flush, it is written
anew. docs/contributing/measuring.md describes it."""
SAMPLE_US = 2000.0
"""A graph has only as many calls as fit into this time."""
MOST_COPIES, COPIED_BYTES = 4, 2**28
"""Operands are timed at this many addresses, as long as the copies take at most so much memory."""
FREE_BYTES = 2**30
"""GPU memory that must stay free beside what a trial takes."""

Step = Callable[[int], object]


def bytes_needed(fakes: Sequence[torch.Tensor], outputs: int, device: torch.device) -> int:
    """GPU memory that a trial takes. `outputs`: bytes of the outputs of one call, which are compared in fp64."""
    return _copies(fakes) * sizes(fakes) + 20 * outputs + 2 * _flushed(device)


def shortage(fakes: Sequence[torch.Tensor], outputs: int, device: torch.device) -> str:
    """Why the GPU has too little memory for a trial, empty if it has enough. The arguments are those of
    `bytes_needed`."""
    needed = bytes_needed(fakes, outputs, device)
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    short = needed + FREE_BYTES > free
    return f"only {free >> 20} MiB are free on the GPU, and timing it takes {needed >> 20}" if short else ""


@PHASES("trial")
def trial(
    functions: tuple[Function, Function], fakes: Sequence[torch.Tensor], warm: Sequence[bool], device: torch.device
) -> Trial:
    """Time two functions, ATen's first, on tensors like `fakes`. `warm`: which of them are in the cache."""
    with torch.cuda.device(device):
        copies = [inputs(fakes) for _ in range(_copies(fakes))]
        stream = _stream(torch.cuda.current_device())
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            aten, ours = (list(_warmed_up(function, copies)) for function in functions)
            differs = differ(ours, aten)
            del aten, ours
            times: tuple[Sequence[float], Sequence[float]] = ((), ())
            times = times if differs else _timed(functions, copies, warm, stream)
        torch.cuda.current_stream().wait_stream(stream)
    return Trial(*times, PROTOCOL, differs)


def _copies(fakes: Sequence[torch.Tensor]) -> int:
    return max(1, min(MOST_COPIES, COPIED_BYTES // max(sizes(fakes), 1)))


def _flushed(device: torch.device) -> int:
    return flush_bytes(int(torch.cuda.get_device_properties(device).L2_cache_size))


@functools.cache
def _stream(device: int) -> torch.cuda.Stream:
    # One for all trials: cuBLAS keeps a workspace per stream.
    return torch.cuda.Stream(device)


def _warmed_up(function: Function, copies: Sequence[Sequence[torch.Tensor]]) -> Sequence[torch.Tensor]:
    """The outputs on the first copy, after a call on the last: the first call loads kernels and may tune them."""
    function(list(copies[-1]))
    return function(list(copies[0]))


def _timed(
    functions: tuple[Function, Function],
    copies: Sequence[Sequence[torch.Tensor]],
    warm: Sequence[bool],
    stream: torch.cuda.Stream,
) -> tuple[list[float], list[float]]:
    """Samples of both functions in microseconds of one call."""
    prepare = preparation(copies, warm, stream.device)
    steps: list[Step | None] = [None, *(functools.partial(_call, function, copies) for function in functions)]
    stream.synchronize()
    took = max(elapsed(functools.partial(_pair, prepare, step, 0)) for step in steps)
    count = max(1, min(PROTOCOL.unroll, int(SAMPLE_US / max(took, 1.0))))
    graphs = [_captured(prepare, step, count, len(copies)) for step in steps]
    for graph in graphs:
        graph.replay()
    samples: tuple[list[float], list[float]] = ([], [])
    for index in range(PROTOCOL.samples):
        times = [0.0, 0.0, 0.0]
        for turn in range(3):
            which = (index + turn) % 3
            times[which] = elapsed(graphs[which].replay)
        for found, time in zip(samples, times[1:], strict=True):
            found.append(max(time - times[0], 0.01) / count)
        if clear(*samples):
            break
    return samples


def _pair(prepare: Step, step: Step | None, index: int) -> None:
    prepare(index)
    if step is not None:
        step(index)


def _call(function: Function, copies: Sequence[Sequence[torch.Tensor]], index: int) -> object:
    return function(list(copies[index]))


def preparation(copies: Sequence[Sequence[torch.Tensor]], warm: Sequence[bool], device: torch.device) -> Step:
    """A function that flushes the cache and then writes the warm tensors of a copy, as the kernels before would."""
    buffer = torch.zeros(_flushed(device) // 4, dtype=torch.int32, device=device)
    sink = torch.zeros((), dtype=torch.int32, device=device)
    warmed = [[_bytes(one) for one, is_warm in zip(copy, warm, strict=True) if is_warm] for copy in copies]

    def prepare(index: int) -> None:
        torch.amax(buffer, 0, out=sink)
        for one in warmed[index]:
            one.bitwise_or_(0)

    return prepare


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory behind a tensor, as bytes or as words where it is a whole number of them."""
    flat = tensor.as_strided((extent(tensor),), (1,)).view(torch.uint8)
    whole = flat.numel() % 4 == 0 and flat.storage_offset() % 4 == 0
    return flat.view(torch.int32) if whole else flat


def _captured(prepare: Step, step: Step | None, count: int, copies: int) -> torch.cuda.CUDAGraph:
    """A graph of `count` preparations, each followed by a call. The stream is the current one."""
    for index in range(2):
        prepare(index % copies)
    torch.cuda.current_stream().synchronize()

    def steps() -> None:
        for index in range(count):
            _pair(prepare, step, index % copies)

    return captured(steps)
