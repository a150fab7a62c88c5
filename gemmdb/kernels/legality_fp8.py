"""Which products of fp8 operands with scales a GPU multiplies at all, and which of Inductor's templates do; each rule
with its reason."""

from __future__ import annotations

from gemmdb.kernels.config import Config
from gemmdb.kernels.hardware import LEAST_DEPTH
from gemmdb.key.device import Device
from gemmdb.key.layout import VECTOR_BYTES
from gemmdb.key.problem import Problem

TMA = "inductor_scaled_tma"
FIRST_ARCH = 89
"""The first compute capability with fp8 in its matrix unit, Ada's."""
_MULTIPLE = 16
_CONVERTED = ("sm90", "sm100")
"""Where Triton turns the fp8 of small tiles into fp16, whose products are summed in fp32. Elsewhere it takes fp8
instructions, and Ada's keep few bits of a sum, too (SageAttention2, arXiv 2411.10958)."""


def unmultiplied(problem: Problem, device: Device) -> str | None:
    """Why torch has no kernel for a scaled_mm on an NVIDIA GPU, None when it has one: what `at::_scaled_mm` checks
    (aten/src/ATen/native/cuda/ScaledBlas.cpp). Inductor asks the same of what it compiles."""
    if _capability(device) < FIRST_ARCH:
        return f"{device.arch} multiplies no fp8: that begins with compute capability 8.9"
    if problem.a.dtype == problem.b.dtype == "fp8_e5m2":
        return "cuBLAS multiplies no two e5m2 operands"
    if problem.k % _MULTIPLE or problem.n % _MULTIPLE:
        return f"torch wants K and N that are multiples of {_MULTIPLE}"
    if any(operand.layout.align < VECTOR_BYTES for operand in (problem.a, problem.b)):
        return "cuBLAS wants fp8 rows that start at multiples of 16 bytes"
    if problem.bias is not None and (problem.out == "fp32" or problem.bias.dtype != problem.out):
        return f"a bias of {problem.bias.dtype} is not added to {problem.out}"
    return None


def template(config: Config, problem: Problem, device: Device) -> str | None:
    """Why one of Inductor's templates is none for a scaled_mm, beside what holds for all ops; None when it is."""
    if reason := unmultiplied(problem, device):
        return reason
    if problem.k <= _MULTIPLE:
        return f"Triton fails where K is {_MULTIPLE} or less, says Inductor"
    if int(config.values["block_k"]) < LEAST_DEPTH:
        return f"the matrix unit takes {LEAST_DEPTH} fp8 of K at once"
    if config.kernel == TMA and problem.bias is not None:
        return "the template with tensor maps takes no bias"
    return None


def summed_in_full(device: Device, grouped: bool) -> bool:
    """Whether a Triton kernel that leaves its sums of fp8 products to the matrix unit has them in fp32. `grouped`: its
    tiles go to the instructions of Hopper's warp groups, which keep about 14 bits (see `generators.tolerance`)."""
    return device.arch in _CONVERTED and not grouped


def _capability(device: Device) -> int:
    """The compute capability as a number, 90 for sm90; 0 for what is no NVIDIA arch."""
    digits = device.arch.removeprefix("sm")
    return int(digits) if device.kind == "cuda" and digits.isdigit() else 0
