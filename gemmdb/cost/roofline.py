"""A rough time for a problem on a device, which scales measured times to nearby sizes and ranks problems without times;
and what an epilogue adds to the time of its GEMM."""

from __future__ import annotations

from gemmdb.cost.machine import machine
from gemmdb.key.device import Device
from gemmdb.key.layout import ITEM_SIZES
from gemmdb.key.problem import Problem

_PER_UNIT = {"cpu": (10.0, 0.05), "cuda": (32.0, 6.0), "hip": (17.0, 4.0)}
"""GB/s and 16-bit TFLOP/s of one SM, compute unit or thread, from an H200 (4,300 GB/s, 790 TFLOP/s), an MI300X's data
sheet and a server core: accurate to a factor of two, which cancels in the ratio of two nearby sizes."""

_LAUNCH_US = 1.0
"""No kernel is faster than its launch."""

EXPONENTIAL = 31
"""Instructions per element of an exact GELU beyond those of relu, counted in code that Triton 3.6 makes for sm90. SiLU
takes 16, two of them at an eighth of the rate."""
TRANSPOSED = 0.05
"""The share of a kernel's time that a transposed store is charged. On an H200, tiles of our kernel gained at most this
much less over ATen and a kernel after it than with a store in their own order, and more at two of five sizes
(benchmarks/results/h200/stores.json)."""


def roofline_us(problem: Problem, device: Device) -> float:
    """The minimum microseconds for moving the bytes or doing the operations, whichever is longer; at least 1."""
    return max(work_us(problem, device), _LAUNCH_US)


def work_us(problem: Problem, device: Device) -> float:
    """The same without the launch: it may be far below 1."""
    return max(parts_us(problem, device))


def parts_us(problem: Problem, device: Device) -> tuple[float, float]:
    """The minimum microseconds for moving the bytes, and for doing the operations."""
    gb_per_s, tflops = limits(device)
    tflops *= 2 / ITEM_SIZES[problem.a.dtype]
    return problem.bytes / gb_per_s / 1e3, problem.flops / tflops / 1e6


def limits(device: Device) -> tuple[float, float]:
    """GB/s of the device's memory and its 16-bit TFLOP/s: its own figures, or what its units suggest."""
    bandwidth, rate = _PER_UNIT[device.kind]
    gb_per_s = device.figures.get("copy_gb_per_s") or bandwidth * device.units
    return gb_per_s, device.figures.get("peak_tflops") or rate * device.units


def extra_us(problem: Problem, device: Device, us: float) -> float:
    """Microseconds that the epilogue of `problem` takes beyond the light one in a kernel that takes `us` with that: a
    transposed store, and exponentials, which a GEMM computes after its sums, where no memory's time hides them. 0 on a
    CPU, and without an epilogue."""
    own, found = problem.epilogue, machine(device)
    if own is None:
        return 0.0
    extra = TRANSPOSED * us if own.order == "transposed" and device.kind == "cuda" else 0.0
    if own.arithmetic != "light" and found is not None:
        extra += EXPONENTIAL * problem.batch * problem.m * problem.n / (found.sms * found.fma / 2)
    return extra
