"""CUDA graphs of what is to be timed, by the clock of the GPU."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch


def captured(steps: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """A graph of what `steps` launches on the current stream, which must not be the default one. Everything has to run
    once before.

    torch.cuda.graph() would also collect garbage and empty the allocator's cache, which takes longer than timing.
    """
    graph = torch.cuda.CUDAGraph()
    collected = gc.isenabled()
    gc.disable()  # Garbage that holds GPU memory would end the capture when it is freed.
    try:
        # Other threads of the program may allocate memory meanwhile.
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            steps()
        finally:
            graph.capture_end()
    finally:
        if collected:
            gc.enable()
    return graph


def elapsed(work: Callable[[], object]) -> float:
    """Microseconds that the GPU takes for what `work` launches on the current stream."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3
