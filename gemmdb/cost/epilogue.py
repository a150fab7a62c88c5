"""What an epilogue costs inside a GEMM's kernel beyond a light one, on a GPU."""

from __future__ import annotations

from gemmdb.cost.machine import machine
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem

EXPONENTIAL = 31
"""Instructions per element of an exact GELU beyond those of relu, counted in code that Triton 3.6 makes for sm90. SiLU
takes 16, two of them at an eighth of the rate."""
TRANSPOSED = 0.05
"""The share of a kernel's time that a transposed store is charged. On an H200, tiles of our kernel gained at most this
much less over ATen and a kernel after it than with a store in their own order, and more at two of five sizes
(benchmarks/results/h200/checks/2026-11-23-stores.json)."""


def extra_us(problem: Problem, device: Device, us: float) -> float:
    """Microseconds that the epilogue of `problem` takes beyond the light one in a kernel that takes `us` with that: a
    transposed store, and exponentials, which a GEMM computes after its sums, where no memory's time
    hides them. 0 on a CPU, and without an epilogue."""
    own, found = problem.epilogue, machine(device)
    if own is None:
        return 0.0
    extra = TRANSPOSED * us if own.order == "transposed" and device.kind == "cuda" else 0.0
    if own.arithmetic != "light" and found is not None:
        extra += EXPONENTIAL * problem.batch * problem.m * problem.n / (found.sms * found.fma / 2)
    return extra
