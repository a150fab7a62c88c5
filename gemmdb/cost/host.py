"""Host time: how long the processor takes to call a GEMM's kernels. It counts where no CUDA graph captures the program.

The GPU waits for the processor while its GEMMs are short: then a config with slower calls loses time even if its kernel
is faster than ATen's.
"""

from __future__ import annotations

from collections.abc import Iterator

from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.default_mode import may_pad
from gemmdb.key.problem import Problem
from gemmdb.rejected import Rejected

US = {
    "library": 12.8,  # torch.mm(out=): measured on the host of an H100, torch 2.11.
    "prepared": 10.9,  # cublasLtMatmul with arguments made once: measured there too.
    "cuda": 10.9,  # A compiled CUDA function, also called by ctypes: assumed like `prepared`.
    "launch": 8.0,  # A Triton kernel with Inductor's static launcher: assumed, 7 to 10 us.
    # One with tensor maps, which has no static launcher and takes scratch at each call: assumed. With a driver that
    # does nothing, the two launchers of torch 2.11 take 2.5 and 5.7 us.
    "mapped": 16.0,
    "buffer": 2.0,  # Memory from torch's allocator: assumed.
}
"""Microseconds of the host per call. Those that are assumed are chosen so that a config is refused rather than slow."""
ACCURACY_US = 1.0
"""Differences up to this do not count."""
HIDDEN_US = 30.0
"""A GEMM that takes the GPU this long hides its call and those of the small kernels around it: about three launches."""


def host_us(config: Config, problem: Problem) -> float:
    """Microseconds for which the host is busy with one GEMM: calls of kernels, and of what follows it in an epilogue
    that the kernel does not contain."""
    return sum(US[call] for call in _calls(config, problem))


def slower_us(config: Config, problem: Problem) -> float:
    """Microseconds by which a config takes the host longer than ATen, 0 if it takes as long or less."""
    slower = host_us(config, problem) - host_us(ATEN, problem)
    return slower if slower > ACCURACY_US else 0.0


def rejection(config: Config, problem: Problem, us: float, aten_us: float) -> Rejected | None:
    """Return why a config must not be served where no CUDA graph captures the program; None if its calls take no longer
    than ATen's, or no longer than what it saves of the time that the host does not need anyway. `us`, `aten_us`: one
    call on the GPU."""
    slower = slower_us(config, problem)
    if not slower or aten_us >= HIDDEN_US:
        return None
    aten_host = host_us(ATEN, problem)
    saved = max(aten_us, aten_host) - max(us, aten_host)
    if slower <= saved:
        return None
    return Rejected(f"host time: {config.name} takes the host {slower:.0f} us more per call than ATen")


def _calls(config: Config, problem: Problem) -> Iterator[str]:
    """Yield the calls of one GEMM, by their names in `US`."""
    if config.backend == "triton":
        yield from _triton(config)
        return
    if config.backend == "aten":
        yield from _aten(config, problem)
    else:
        yield "prepared" if config.backend == "cublaslt" else "cuda"
        if config.values.get("split_k", 1) != 1:
            yield "buffer"
    scaled = config.backend == "cutlass" and problem.fusion == "scale"
    if problem.fusion != "none" and not scaled:
        yield "launch"


def _triton(config: Config) -> Iterator[str]:
    """Yield the calls of a Triton kernel, which contains its epilogue. The counters of `reduce=fixup` are allocated and
    zeroed once for a whole graph, so they do not count."""
    maps, template = config.spec.maps(config), config.spec.template
    if maps and template is None:  # Inductor's templates take memory for their tensor maps from the graph.
        yield "buffer"
    yield "mapped" if maps else "launch"
    if template is not None and template.reduction(config) == "kernel":
        yield from ("buffer", "launch")


def _aten(config: Config, problem: Problem) -> Iterator[str]:
    """Yield ATen's calls, with those that prepare operands: a weight is cast, rows are padded. Where default mode may
    pad, padding costs nothing more."""
    yield "library"
    pads = config.kernel == "padded" and not may_pad(problem)
    casts = problem.spec.dequantises and problem.int4 is None
    for _ in range(2 * pads + casts):
        yield from ("buffer", "launch")
