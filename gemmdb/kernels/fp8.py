"""Which products of fp8 operands with scales a GPU multiplies at all; each rule with its reason."""

from __future__ import annotations

from gemmdb.kernels.hardware import FIRST_FP8
from gemmdb.key.device import Device
from gemmdb.key.layout import VECTOR_BYTES
from gemmdb.key.problem import Problem

MULTIPLE = 16
_CONVERTED = (90, 100)
"""Where Triton turns the fp8 of small tiles into fp16, whose products are summed in fp32. Elsewhere it takes fp8
instructions, and Ada's keep few bits of a sum, too (SageAttention2, arXiv 2411.10958)."""


def unmultiplied(problem: Problem, device: Device) -> str | None:
    """Why torch has no kernel for a scaled_mm on an NVIDIA GPU, None when it has one: what `at::_scaled_mm` checks
    (aten/src/ATen/native/cuda/ScaledBlas.cpp). Inductor asks the same of what it compiles. None for other ops."""
    if not problem.spec.scaled:
        return None
    if device.capability < FIRST_FP8:
        return f"{device.arch} multiplies no fp8: that begins with compute capability 8.9"
    if problem.a.dtype == problem.b.dtype == "fp8_e5m2":
        return "cuBLAS multiplies no two e5m2 operands"
    if problem.k % MULTIPLE or problem.n % MULTIPLE:
        return f"torch wants K and N that are multiples of {MULTIPLE}"
    if any(operand.layout.align < VECTOR_BYTES for operand in (problem.a, problem.b)):
        return "cuBLAS wants fp8 rows that start at multiples of 16 bytes"
    if problem.bias is not None and (problem.out == "fp32" or problem.bias.dtype != problem.out):
        return f"a bias of {problem.bias.dtype} is not added to {problem.out}"
    return None


def summed_in_full(device: Device, grouped: bool) -> bool:
    """Whether a Triton kernel that leaves its sums of fp8 products to the matrix unit has them in fp32. `grouped`: its
    tiles go to the instructions of Hopper's warp groups, which keep about 14 bits (see
    `gemmdb.generators.measure.tolerance`)."""
    return device.capability in _CONVERTED and not grouped
