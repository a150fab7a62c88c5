"""The floor: the least time that a device needs for a problem, by what it can compute and move in a second."""

from __future__ import annotations

from gemmdb.cost.roofline import limits
from gemmdb.key.device import Device
from gemmdb.key.layout import ITEM_SIZES
from gemmdb.key.problem import Problem

LAUNCH_US = 1.0
"""No kernel is faster than its launch."""
_FP32_PER_CLOCK = {"sm75": 128, "sm80": 128}
"""Operations of one SM and clock in IEEE fp32, outside the tensor cores; 256 on other GPUs of NVIDIA."""


def peak(problem: Problem, device: Device) -> tuple[str, float]:
    """How the problem is computed, in words, and the device's TFLOP/s (or TOP/s) for that."""
    _, sixteen_bit = limits(device)
    size = ITEM_SIZES[problem.a.dtype]
    if problem.a.dtype != "fp32":
        return f"{8 * size}-bit", sixteen_bit * 2 / size
    if problem.numerics.fp32 == "ieee" and device.kind == "cuda" and (clock := device.figures.get("clock_mhz")):
        return "fp32", device.units * _FP32_PER_CLOCK.get(device.arch, 256) * clock / 1e6
    return "tf32" if device.kind == "cuda" and problem.numerics.fp32 != "ieee" else "fp32", sixteen_bit * 2 / size


def floor_us(problem: Problem, device: Device) -> float:
    """Microseconds for moving the bytes once or doing the operations, whichever is longer; at least the launch. Of the
    matrices of groups with rows, as many are read as the sparsest split needs."""
    gb_per_s, _ = limits(device)
    _, tflops = peak(problem, device)
    moved = float(problem.bytes)
    if problem.ragged == "m":
        moved -= problem.weight_bytes * (1 - problem.fewest_groups / max(problem.active_groups, 1))
    return max(moved / gb_per_s / 1e3, problem.flops / tflops / 1e6, LAUNCH_US)
