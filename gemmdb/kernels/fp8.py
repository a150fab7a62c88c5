"""Which products of fp8 operands with scales a GPU can compute; each rule with its reason."""

from __future__ import annotations

from gemmdb.kernels.hardware import FIRST_FP8, HOPPER
from gemmdb.key.device import Device
from gemmdb.key.layout import VECTOR_BYTES
from gemmdb.key.problem import Problem

MULTIPLE = 16
PROMOTED = 256
"""Without fast accumulation, the matrix unit sums at most this many products before they are added in fp32: 128 in
cuBLAS and CUTLASS, the depth of a tile in Triton's kernels."""
_CONVERTED = (90, 100)
"""Compute capabilities where Triton converts fp8 to fp16 in small tiles and sums in fp32. On others it uses fp8
instructions, and Ada's also keep few bits of a sum (SageAttention2, arXiv 2411.10958)."""


def unmultiplied(problem: Problem, device: Device) -> str | None:
    """Why torch has no kernel for fp8 operands on an NVIDIA GPU, None when it has one: what `at::_scaled_mm` checks
    (aten/src/ATen/native/cuda/ScaledBlas.cpp), and of groups `at::_scaled_grouped_mm` (GroupedBlas.cpp). Inductor has
    the same requirements for what it compiles. None for other dtypes."""
    if not problem.scaled:
        return None
    if device.capability < FIRST_FP8:
        return f"{device.arch} cannot multiply fp8, which needs compute capability 8.9"
    if problem.spec.grouped and device.capability != HOPPER:
        return "torch's kernel for groups of fp8 is made for Hopper alone"
    if problem.a.dtype == problem.b.dtype == "fp8_e5m2":
        return "cuBLAS cannot multiply two e5m2 operands"
    if problem.scales == "block" and device.capability != HOPPER:
        return "cuBLAS multiplies with scales of blocks on Hopper alone"
    if problem.k % MULTIPLE or problem.n % MULTIPLE:
        return f"torch wants K and N that are multiples of {MULTIPLE}"
    if any(operand.layout.align < VECTOR_BYTES for operand in (problem.a, problem.b)):
        return "cuBLAS wants fp8 rows that start at multiples of 16 bytes"
    if problem.bias is not None and (problem.out == "fp32" or problem.bias.dtype != problem.out):
        return f"a bias of {problem.bias.dtype} is not added to {problem.out}"
    return None


def summed_in_full(device: Device, grouped: bool) -> bool:
    """Whether a Triton kernel that sums fp8 products in the matrix unit gets fp32 sums. `grouped`: its tiles use
    Hopper's warp-group instructions, which keep about 14 bits (see `gemmdb.generators.measure.tolerance`)."""
    return device.capability in _CONVERTED and not grouped
