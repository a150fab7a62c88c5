"""How torch spells the product of each op, one entry per op, for the measured module and for the reference's call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gemmdb.generators.measure.literals import SCALARS
from gemmdb.key.problem import Problem

DTYPES = {
    "fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16,
    "int32": torch.int32, "int8": torch.int8, "uint8": torch.uint8,
    "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2,
}  # fmt: skip
Beside = Sequence[torch.Tensor]
BESIDE = ("scale_a", "scale_b", "offsets")
"""The names of what an op may take beside its matrices, in order."""
Spelling = Callable[..., torch.Tensor]
"""(problem, A [m, k], B [k, n], those of BESIDE that the problem has, bias that the op itself adds or None) gives the
product [m, n], or the batch of them. A keyword `out` names the tensor to write it to; the spellings in ALLOCATES ignore
it."""


def to_torch(dtype: str) -> torch.dtype:
    """The torch dtype of a dtype name of the key."""
    return DTYPES[dtype]


def _mm(p: Problem, a: torch.Tensor, b: torch.Tensor, _: Beside, bias: torch.Tensor | None, **out: Any) -> torch.Tensor:
    if bias is None:
        return torch.mm(a, b, **out)
    alpha, beta = SCALARS[p.scalars]
    return torch.addmm(bias, a, b, alpha=alpha, beta=beta, **out)


def _int_mm(p: Problem, a: torch.Tensor, b: torch.Tensor, *_: Any, **out: Any) -> torch.Tensor:
    return torch._int_mm(a, b, **out)


def _bmm(p: Problem, a: torch.Tensor, b: torch.Tensor, *_: Any, **out: Any) -> torch.Tensor:
    return torch.bmm(a, b, **out)


def _scaled_mm(
    p: Problem, a: torch.Tensor, b: torch.Tensor, scales: Beside, bias: torch.Tensor | None, **out: Any
) -> torch.Tensor:
    dtype, fast = to_torch(p.out), p.numerics.fast
    return torch._scaled_mm(a, b, *scales, bias=bias, out_dtype=dtype, use_fast_accum=fast, **out)


def _grouped_mm(p: Problem, a: torch.Tensor, b: torch.Tensor, beside: Beside, *_: Any, **out: Any) -> torch.Tensor:
    *scales, offsets = beside
    if not p.scaled:
        return torch._grouped_mm(a, b, offs=offsets)
    dtype, fast = to_torch(p.out), p.numerics.fast
    return torch._scaled_grouped_mm(a, b, *scales, offs=offsets, out_dtype=dtype, use_fast_accum=fast)


SPELLINGS: Mapping[str, Spelling] = {
    "mm": _mm, "addmm": _mm, "mixed_mm": _mm, "int_mm": _int_mm, "bmm": _bmm, "scaled_mm": _scaled_mm,
    "grouped_mm": _grouped_mm,
}  # fmt: skip
"""By op. The weight of a mixed_mm is cast before its product."""
ALLOCATES = ("grouped_mm",)
"""Ops that torch computes into new memory only."""
