"""A rough time for a problem on a device. It scales measured times to nearby sizes and ranks problems without times."""

from __future__ import annotations

from gemmdb.key.device import Device
from gemmdb.key.layout import ITEM_SIZES
from gemmdb.key.problem import Problem

_PER_UNIT = {"cpu": (10.0, 0.05), "cuda": (32.0, 6.0), "hip": (17.0, 4.0)}
"""GB/s and 16-bit TFLOP/s of one SM, compute unit or thread, from an H200 (4,300 GB/s, 790 TFLOP/s), an MI300X's data
sheet and a server core: accurate to a factor of two, which cancels in the ratio of two nearby sizes."""

_LAUNCH_US = 1.0
"""No kernel is faster than its launch."""


def roofline_us(problem: Problem, device: Device) -> float:
    """The minimum microseconds for moving the bytes or doing the operations, whichever is longer; at least 1."""
    return max(work_us(problem, device), _LAUNCH_US)


def work_us(problem: Problem, device: Device) -> float:
    """The same without the launch: it may be far below 1."""
    gb_per_s, tflops = limits(device)
    tflops *= 2 / ITEM_SIZES[problem.a.dtype]
    return max(problem.bytes / gb_per_s / 1e3, problem.flops / tflops / 1e6)


def limits(device: Device) -> tuple[float, float]:
    """GB/s of the device's memory and its 16-bit TFLOP/s: its own figures, or what its units suggest."""
    bandwidth, rate = _PER_UNIT[device.kind]
    gb_per_s = device.figures.get("copy_gb_per_s") or bandwidth * device.units
    return gb_per_s, device.figures.get("peak_tflops") or rate * device.units
