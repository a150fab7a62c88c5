"""DeepGEMM: fp8 with block scales, bf16, and groups. Imports torch.

Its kernels are compiled for each N and K by nvcc, and its own heuristic chooses among them.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import torch

from benchmarks.peers.case import Case, Made, Unfit, each
from benchmarks.peers.packing import padded_rows
from gemmdb.generators.measure.operands import Operands


def library() -> Any:
    """The module. Raises ImportError without DeepGEMM."""
    return importlib.import_module("deep_gemm")


def dense(case: Case) -> Made:
    """A GEMM of bf16, or of fp8 with block scales."""
    return each([_dense(case, made) for made in case.sets])


def _dense(case: Case, made: Operands) -> partial[torch.Tensor]:
    module, problem = library(), case.problem
    out = torch.empty(problem.m, problem.n, dtype=torch.bfloat16, device=made.a.device)
    weight = made.b.t()
    if not problem.scaled:
        case.multiple(n=8, k=8)
        return partial(_into, module.bf16_gemm_nt, out, made.a, weight)
    assert made.scale_a is not None
    assert made.scale_b is not None
    # Each column of scales begins at a multiple of 16 bytes, as the kernel before writes it in a model.
    first = module.get_mn_major_tma_aligned_tensor(made.scale_a.contiguous())
    second = made.scale_b.t().contiguous()
    return partial(_into, module.fp8_gemm_nt, out, (made.a, first), (weight, second))


def _into(run: Any, out: torch.Tensor, *operands: Any) -> torch.Tensor:
    run(*operands, out)
    return out


def contiguous(case: Case) -> Made:
    """Groups whose rows begin at multiples of a block, as a model's permutation leaves them."""
    if case.problem.scaled:
        raise Unfit("its scales are those of blocks, not of rows and columns")
    module, problem = library(), case.problem
    wanted = module.get_theoretical_mk_alignment_for_contiguous_layout
    try:
        alignment = wanted(problem.m, problem.groups)
    except TypeError:
        alignment = wanted(-(-problem.m // problem.groups))
    calls, places = [], []
    for made in case.sets:
        assert made.offsets is not None
        place, group = padded_rows(made.offsets.tolist(), alignment)
        place, group = place.to(made.a.device), group.to(made.a.device)
        rows = torch.zeros(len(group), problem.k, dtype=made.a.dtype, device=made.a.device)
        rows[place] = made.a[: len(place)]
        out = torch.empty(len(group), problem.n, dtype=made.a.dtype, device=made.a.device)
        calls.append(partial(_aligned, alignment, out, rows, made.b.transpose(1, 2), group))
        places.append(place)
    return Made(lambda index: calls[index](), lambda result, index: result[places[index]])


def _aligned(
    alignment: int, out: torch.Tensor, rows: torch.Tensor, weight: torch.Tensor, group: torch.Tensor
) -> torch.Tensor:
    module = library()
    usual = module.get_mk_alignment_for_contiguous_layout()
    module.set_mk_alignment_for_contiguous_layout(alignment)
    try:
        module.m_grouped_bf16_gemm_nt_contiguous(rows, weight, out, group)
    finally:
        module.set_mk_alignment_for_contiguous_layout(usual)
    return out


def masked(case: Case) -> Made:
    """Groups with room for the largest of them, as decoding has them."""
    if case.problem.scaled:
        raise Unfit("its scales are those of blocks, not of rows and columns")
    module, problem = library(), case.problem
    if problem.m > MASKED_ROWS:
        raise Unfit("a layout for few rows")
    calls, places = [], []
    for made in case.sets:
        assert made.offsets is not None
        ends = made.offsets.tolist()
        counts = [end - begin for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
        room = -(-max(counts) // MASKED_STEP) * MASKED_STEP
        pairs = [(group, at) for group, count in enumerate(counts) for at in range(count)]
        place = torch.tensor(pairs).to(made.a.device)
        rows = torch.zeros(problem.groups, room, problem.k, dtype=made.a.dtype, device=made.a.device)
        rows[place[:, 0], place[:, 1]] = made.a[: len(place)]
        out = torch.empty(problem.groups, room, problem.n, dtype=made.a.dtype, device=made.a.device)
        mask = torch.tensor(counts, dtype=torch.int32, device=made.a.device)
        expected = max(-(-problem.m // problem.groups), 1)
        run = partial(module.m_grouped_bf16_gemm_nt_masked, rows, made.b.transpose(1, 2), out, mask, expected)
        calls.append(partial(_after, run, out))
        places.append(place)
    return Made(lambda index: calls[index](), lambda result, at: result[places[at][:, 0], places[at][:, 1]])


MASKED_ROWS, MASKED_STEP = 256, 64
"""The most rows for which the masked layout is used, and what a group's room is a multiple of."""


def _after(run: Any, out: torch.Tensor) -> torch.Tensor:
    run()
    return out
