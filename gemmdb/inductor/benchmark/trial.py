"""A trial: two compiled functions on the same random inputs, timed alternately.

On a GPU, CUDA graphs of a few calls are replayed and timed on the GPU clock; on a CPU, single calls are timed on the
host clock. Before each call the cache is flushed, then the tensors that the program has just computed are reloaded.
docs/contributing/measuring.md describes both protocols.
"""

from __future__ import annotations

import functools
import gc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from gemmdb.inductor.benchmark import limits
from gemmdb.inductor.benchmark.tensors import differ, extent, inputs, total_bytes
from gemmdb.inductor.benchmark.timers import Prepare, Sampler, cold_bytes, in_turn
from gemmdb.inductor.lower.adapter.emission import Function
from gemmdb.phases import PHASES
from gemmdb.table.measurement import NOISY, Protocol
from gemmdb.table.stats import times

GPU = Protocol("graph", "cold", 10, 15, version=4)
CPU = Protocol("host", "cold", 1, 20, version=4)
"""Same protocols as in a build, except that tensors that the graph has just computed are in the cache."""
MIN_ROUNDS = 5
"""Minimum rounds per trial."""
CLEAR = 1.1
"""A trial stops early if every sample of one function is at least this many times every sample of the other and both
are steady."""
SAMPLE_US = 2000.0
"""Maximum time of the calls in one CUDA graph."""
MAX_COPIES, COPIED_BYTES = 4, 2**28
"""Maximum number of operand copies timed on a GPU, and the maximum bytes of all copies."""
FREE_BYTES = 2**30
"""GPU memory that must stay free in addition to what a trial uses."""

Functions = tuple[Function, Function]
Tensors = Sequence[torch.Tensor]


class Untimed(Exception):
    """A trial without a result; the message is the reason."""


@dataclass(frozen=True)
class Trial:
    """Samples in microseconds per call of `aten` and `ours`, taken alternately. `differs`: the outputs differ by more
    than rounding, and nothing was timed."""

    aten: Sequence[float]
    ours: Sequence[float]
    protocol: Protocol
    differs: bool = False


@PHASES("trial")
def run(
    functions: Functions, fakes: Tensors, warm: Sequence[bool], device: torch.device, kinds: Sequence[str] = ()
) -> Trial:
    """Time two functions, ATen's first, on tensors like `fakes`. `warm`: which tensors are in the cache. `kinds`: see
    `tensors.inputs`."""
    if device.type == "cuda":
        return _on_gpu(functions, fakes, warm, device, kinds)
    return _on_cpu(functions, fakes, warm, kinds)


def clear(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether it is already certain which of the two is faster.

    With few samples, one disturbed sample makes the time too noisy; with more, it does not matter.
    """
    if min(len(one), len(other)) < MIN_ROUNDS or noisy(one, other):
        return False
    return min(one) > CLEAR * max(other) or min(other) > CLEAR * max(one)


def noisy(aten: Sequence[float], ours: Sequence[float]) -> bool:
    """Return whether the samples are too noisy to compare."""
    return max(times(aten, aten).spread, times(ours, aten).spread) > NOISY


def check_memory(fakes: Tensors, output_bytes: int, device: torch.device) -> None:
    """Raise Untimed if a GPU has too little memory for a trial. `output_bytes`: output size of one call; outputs are
    compared in fp64."""
    if device.type != "cuda":
        return
    needed = copies_of(fakes) * total_bytes(fakes) + 20 * output_bytes + 2 * cold_bytes(device)
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if needed + FREE_BYTES > free:
        raise Untimed(f"only {free >> 20} MiB are free on the GPU, and timing it takes {needed >> 20}")


def _on_cpu(functions: Functions, fakes: Tensors, warm: Sequence[bool], kinds: Sequence[str]) -> Trial:
    given = inputs(fakes, kinds)
    if _outputs_differ(functions, given):
        return Trial((), (), CPU, differs=True)
    warmed = [tensor for tensor, is_warm in zip(given, warm, strict=True) if is_warm]

    def touch() -> None:
        for tensor in warmed:
            tensor.clone()

    sampler = Sampler.of(CPU.l2, 2 * CPU.samples)
    samples: tuple[list[float], list[float]] = ([], [])
    until = perf_counter() + limits.CPU_TRIAL_S
    gc.collect()
    gc.disable()
    try:
        for index in range(CPU.samples):
            if (index >= MIN_ROUNDS and perf_counter() > until) or clear(*samples):
                break
            for which in (index % 2, 1 - index % 2):
                best_us = min(samples[which], default=math.inf)
                samples[which].append(sampler.time(functions[which], given, best_us, touch))
    finally:
        gc.enable()
    return Trial(*samples, CPU)


def _outputs_differ(functions: Functions, given: list[torch.Tensor]) -> bool:
    aten, ours = (list(function(list(given))) for function in functions)
    return differ(ours, aten)


def _on_gpu(
    functions: Functions, fakes: Tensors, warm: Sequence[bool], device: torch.device, kinds: Sequence[str]
) -> Trial:
    with torch.cuda.device(device):
        copies = [inputs(fakes, kinds) for _ in range(copies_of(fakes))]
        stream = stream_of(torch.cuda.current_device())
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for function in functions:  # The first call loads kernels and may autotune them.
                function(list(copies[-1]))
            differs = _outputs_differ(functions, copies[0])
            samples: tuple[Sequence[float], Sequence[float]] = ((), ())
            samples = samples if differs else _samples(functions, copies, warm, stream)
        torch.cuda.current_stream().wait_stream(stream)
    return Trial(*samples, GPU, differs)


def copies_of(fakes: Tensors) -> int:
    """Return how many copies of tensors a trial on a GPU uses."""
    return max(1, min(MAX_COPIES, COPIED_BYTES // max(total_bytes(fakes), 1)))


@functools.cache
def stream_of(device: int) -> torch.cuda.Stream:
    """Return the stream of all trials on a device: cuBLAS keeps a workspace per stream."""
    return torch.cuda.Stream(device)


def _samples(
    functions: Functions, copies: Sequence[Tensors], warm: Sequence[bool], stream: torch.cuda.Stream
) -> tuple[list[float], list[float]]:
    """Return samples of both functions in microseconds per call: the time of a graph with the call minus one
    without."""
    calls = [functools.partial(_on_copy, function, copies) for function in functions]
    prepare = preparation(copies, warm, stream.device)
    aten, ours = in_turn(prepare, calls, len(copies), GPU, SAMPLE_US, lambda samples: clear(*samples))
    return aten, ours


def _on_copy(function: Function, copies: Sequence[Tensors], index: int) -> None:
    function(list(copies[index]))


def preparation(copies: Sequence[Tensors], warm: Sequence[bool], device: torch.device) -> Prepare:
    """Return a function that flushes the cache and then writes the warm tensors of a copy, as the preceding kernels
    would."""
    buffer = torch.zeros(cold_bytes(device) // 4, dtype=torch.int32, device=device)
    sink = torch.zeros((), dtype=torch.int32, device=device)
    warmed = [[_memory(one) for one, is_warm in zip(copy, warm, strict=True) if is_warm] for copy in copies]

    def prepare(index: int) -> None:
        torch.amax(buffer, 0, out=sink)
        for one in warmed[index]:
            one.bitwise_or_(0)

    return prepare


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's memory, viewed as words if its size allows, else as bytes."""
    flat = tensor.as_strided((extent(tensor),), (1,)).view(torch.uint8)
    whole = flat.numel() % 4 == 0 and flat.storage_offset() % 4 == 0
    return flat.view(torch.int32) if whole else flat
