"""vLLM's own CUDA library: Marlin, Machete, and CUTLASS GEMMs of fp8 and int8. Imports torch.

The library is loaded without the package `vllm`, whose import needs a serving engine's dependencies. Weights are packed
by the library's own operators, as vLLM's layers do after they load a model.
"""

from __future__ import annotations

import functools
import importlib.util
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers.case import Case, Made, Unfit, each
from benchmarks.peers.packing import Weight, gptq, marlin_scales
from gemmdb.generators.measure.operands import Operands

LIBRARY = "_C_stable_libtorch.abi3.so"
IEEE_NANS = 1 << 50
"""What vLLM's numbers of scalar types say of NaNs, also of integers."""
SWAPPED_ROWS = 64
"""Up to that many rows, vLLM's grouped kernels compute the transposed product."""


@functools.cache
def operators() -> Any:
    """The library's operators. Raises ImportError without vLLM, OSError if the library does not fit this torch."""
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        raise ImportError("vllm is not installed")
    torch.ops.load_library(str(Path(found.submodule_search_locations[0]) / LIBRARY))
    return torch.ops._C


def unsigned(bits: int) -> int:
    """vLLM's number of the unsigned integers of `bits` bits that count from the middle."""
    return IEEE_NANS | (1 << (bits - 1)) << 17 | bits << 8


def marlin(case: Case) -> Made:
    """Marlin with the weights of a GPTQ checkpoint."""
    case.multiple(n=64, k=128)
    return each([_marlin(case, made, weight) for made, weight in zip(case.sets, case.weights(), strict=True)])


def _marlin(case: Case, made: Operands, weight: Weight) -> partial[torch.Tensor]:
    ops, problem, device = operators(), case.problem, made.a.device
    nothing = torch.empty(0, dtype=torch.int32, device=device)
    packed = ops.gptq_marlin_repack(gptq(weight), nothing, problem.k, problem.n, weight.bits, False)
    locks = torch.zeros(torch.cuda.get_device_properties(device).multi_processor_count, dtype=torch.int32).to(device)
    # No bias, activation scales or global scale; no zero points, no order of activations. Partial sums in fp32.
    return partial(
        ops.marlin_gemm, made.a, None, packed, None, marlin_scales(weight), None, None, nothing, nothing, nothing,
        locks, unsigned(weight.bits), problem.m, problem.n, problem.k, True, False, True, False,
    )  # fmt: skip


def machete(case: Case) -> Made:
    """Machete with its own choice of schedule."""
    case.multiple(n=128, k=64)
    return each([_machete(made, weight) for made, weight in zip(case.sets, case.weights(), strict=True)])


def _machete(made: Operands, weight: Weight) -> partial[torch.Tensor]:
    ops, dtype, kind = operators(), made.a.dtype, unsigned(weight.bits)
    columns = gptq(weight).t().contiguous().t()
    packed, scale = ops.machete_prepack_B(columns, dtype, kind, dtype), weight.scale.t().contiguous()
    group = -1 if len(scale) == 1 else weight.codes.shape[1] // len(scale)
    return partial(ops.machete_mm, made.a, packed, kind, None, scale, None, group, None, None, None)


def scaled(case: Case) -> Made:
    """CUTLASS GEMMs of fp8 or int8 with scales."""
    case.multiple(n=16, k=16)
    return each([_scaled(case, made) for made in case.sets])


def _scaled(case: Case, made: Operands) -> partial[torch.Tensor]:
    problem, ops = case.problem, operators()
    out = torch.empty(problem.m, problem.n, dtype=torch.bfloat16, device=made.a.device)
    if problem.op == "int_mm":
        assert made.scale is not None
        one = torch.ones(1, 1, device=made.a.device)
        scales = (one, made.scale.float().view(1, -1))
    else:
        assert made.scale_a is not None
        assert made.scale_b is not None
        first, second = made.scale_a, made.scale_b
        if problem.scales == "tensor":
            first, second = first.view(1, 1), second.view(1, 1)
        if problem.scales == "block":
            # Dense along M and along K: the quantization writes the first, a checkpoint has the second.
            first, second = (scale.t().contiguous().t() for scale in (first, second))
        scales = (first, second)
    return partial(_into, ops.cutlass_scaled_mm, out, made.a, made.b, *scales, None)


def _into(run: Any, out: torch.Tensor, *arguments: Any) -> torch.Tensor:
    run(out, *arguments)
    return out


def grouped(case: Case) -> Made:
    """CUTLASS GEMMs of experts, fp8 with a scale per row and column."""
    case.multiple(n=16, k=16)
    return each([_grouped(case, made) for made in case.sets])


def _grouped(case: Case, made: Operands) -> partial[torch.Tensor]:
    problem, ops, device = case.problem, operators(), made.a.device
    if made.scale_a is None or made.scale_b is None or made.offsets is None:
        raise Unfit("only for fp8")
    groups = problem.groups
    starts = torch.cat([made.offsets.new_zeros(1), made.offsets]).to(torch.int64)
    sizes = [torch.empty(groups, 3, dtype=torch.int32, device=device) for _ in range(2)]
    swap = problem.m <= SWAPPED_ROWS
    # The first of two GEMMs of a layer would have gate and up in one: n is half of its columns.
    ops.get_cutlass_moe_mm_problem_sizes_from_expert_offsets(starts, *sizes, problem.n // 2, problem.k, swap)
    deep, wide = (torch.full((groups,), size, dtype=torch.int64, device=device) for size in (problem.k, problem.n))
    out = torch.empty(problem.m, problem.n, dtype=torch.bfloat16, device=device)
    weight = made.b.transpose(1, 2)
    return partial(
        _into, ops.cutlass_moe_mm, out, made.a, weight, made.scale_a.view(-1, 1), made.scale_b.unsqueeze(-1),
        starts[:-1].contiguous(), sizes[0], deep, deep, wide, True, True,
    )  # fmt: skip
