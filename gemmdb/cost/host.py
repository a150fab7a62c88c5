"""Host time: how long the processor takes to call a GEMM's kernels. It counts where no CUDA graph captures the program.

The GPU waits for the processor while its GEMMs are short: then a config with slower calls loses time even if its kernel
is faster than ATen's.
"""

from __future__ import annotations

from collections.abc import Iterator

from gemmdb.kernels import cutlass
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.cublaslt import activation_of
from gemmdb.kernels.default_mode import may_pad
from gemmdb.key.problem import Problem, Query
from gemmdb.rejected import Rejected

US = {
    "library": 14.8,  # torch.mm(out=)
    "prepared": 12.3,  # cublasLtMatmul with arguments that were made once.
    "cuda": 13.0,  # A CUDA function of CUTLASS.
    "launch": 9.4,  # A Triton kernel with Inductor's static launcher.
    "mapped": 15.5,  # One with tensor maps, which has no static launcher, and takes memory for them.
    "pass": 12.3,  # A kernel before or after the GEMM, with the memory of what it writes.
    "sum": 3.8,  # A library's second kernel, which adds the parts of a split K.
    "workspace": 0.6,  # Memory that a call needs besides its output.
}
"""Microseconds of the host per call, from the medians of `python -m benchmarks.torch host` on an H200's host, torch
2.11, Python's wrapper (benchmarks/results/h200/host-python.json). With the C++ wrapper, all are about 5 us less. `sum`:
a split adds 5.9 us to ATen's call on a host where that takes 23.1 us, and as much to an algorithm's with its workspace
(host-split.json)."""
ACCURACY_US = 1.0
"""Differences up to this do not count."""
HIDDEN_US = 30.0
"""A GEMM that takes the GPU this long hides its call and those of the small kernels around it: about three launches."""
TRAINING_HIDDEN_FLOPS = 4.8e10
"""Floating-point operations of a GEMM that takes an H200 80 us. Where half of a training step's GEMMs are this long,
the GPU is the bottleneck: a step also runs autograd, casts and the optimizer, and for each GEMM, steps of four models
took the host 84 to 146 us (benchmarks/results/h200/dense/programs-2026-11-28b.jsonl.xz). A slower GPU hides even
more."""
TRAINING_MARGIN_US = 5.0
"""What a call must save the host where it is the bottleneck. Code is not in the processor's cache there as it is in a
loop: 24 calls of cuBLASLt and 6 kernels with tensor maps made a step of train-vit 370 us longer for the host, and one
call of each, for the longest GEMMs, a step of train-blocks 140 us
(benchmarks/results/h200/dense/programs-2026-11-29.jsonl.xz)."""


def host_us(config: Config, problem: Problem, epilogue: bool = True, aten_splits: bool = False) -> float:
    """Microseconds for which the host is busy with one GEMM: calls of kernels, and with `epilogue` also of what follows
    it in one that the kernel does not contain. `aten_splits`: ATen's call splits K."""
    us = sum(US[call] for call in _calls(config, problem, epilogue))
    return us + US["sum"] if aten_splits and config.backend == "aten" else us


def slower_us(config: Config, problem: Problem, aten_splits: bool = False) -> float:
    """Microseconds by which a config takes the host longer than ATen, 0 if it takes as long or less. `aten_splits`:
    ATen's call splits K."""
    slower = host_us(config, problem) - host_us(ATEN, problem, aten_splits=aten_splits)
    return slower if slower > ACCURACY_US else 0.0


def rejection(
    config: Config, query: Query, us: float, aten_us: float, training: bool = False
) -> Rejected | None:  # fmt: skip
    """Return why a config must not be served where no CUDA graph captures the program; None if its calls take no longer
    than ATen's, or no longer than what it saves of the time that the host does not need anyway. `us`, `aten_us`: one
    call on the GPU. `training`: the program is a training step whose bottleneck is the host."""
    problem = query.problem
    if training:
        return _rejection_in_training(config, problem)
    if aten_us >= HIDDEN_US:
        return None
    slower = slower_us(config, problem, query.aten_splits)
    if not slower:
        return None
    aten_host = host_us(ATEN, problem, aten_splits=query.aten_splits)
    saved = max(aten_us, aten_host) - max(us, aten_host)
    if slower <= saved:
        return None
    return Rejected(f"host time: {config.name} takes the host {slower:.0f} us more per call than ATen")


def _rejection_in_training(config: Config, problem: Problem) -> Rejected | None:
    """Return why a config must not be served in a training step whose bottleneck is the host. What is saved on the GPU
    does not count there, of long GEMMs either. Nor does it that a kernel contains its epilogue: the backward pass reads
    what the epilogue reads, which a kernel must store anyway."""
    if config == ATEN:
        return None
    if host_us(config, problem, epilogue=False) + TRAINING_MARGIN_US <= host_us(ATEN, problem, epilogue=False):
        return None
    return Rejected(f"host time: calls of {config.name} save the host nothing in a training step")


def _calls(config: Config, problem: Problem, epilogue: bool) -> Iterator[str]:
    """Yield the calls of one GEMM, by their names in `US`."""
    if config.backend == "triton":
        yield from _triton(config)
        return
    if config.backend == "aten":
        yield from _aten(config, problem)
    else:
        yield "prepared" if config.backend == "cublaslt" else "cuda"
        if cutlass.streams(config) if config.backend == "cutlass" else config.values.get("split_k", 1) != 1:
            yield from ("sum", "workspace")
    scaled = config.backend == "cutlass" and problem.fusion == "scale"
    if epilogue and problem.fusion != "none" and not scaled and not activation_of(config):
        yield "pass"


def _triton(config: Config) -> Iterator[str]:
    """Yield the calls of a Triton kernel, which contains its epilogue. The counters of `reduce=fixup` are allocated and
    zeroed once for a whole graph, so they do not count."""
    template = config.spec.template
    yield "mapped" if config.spec.maps(config) else "launch"
    if template is not None and template.reduction(config) == "kernel":
        yield "pass"


def _aten(config: Config, problem: Problem) -> Iterator[str]:
    """Yield ATen's calls, with those that prepare operands: a weight is cast, rows are padded. Where default mode may
    pad, padding costs nothing more."""
    yield "library"
    pads = config.kernel == "padded" and not may_pad(problem)
    casts = problem.spec.dequantises and problem.int4 is None
    for _ in range(2 * pads + casts):
        yield "pass"
