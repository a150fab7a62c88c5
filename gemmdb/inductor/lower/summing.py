"""Lowers a product of one row or one column as elementwise products and their sum: one kernel of Inductor's."""

from __future__ import annotations

from typing import Any

import torch

from gemmdb.inductor.lower.adapter import state
from gemmdb.inductor.lower.triton import Operands, check
from gemmdb.key.problem import Problem

aten = torch.ops.aten


def lower(problem: Problem, operands: Operands) -> Any:
    """The product [M, N] in the dtype of A in Inductor's IR, with its scale and bias, computed in the accumulator's
    dtype and rounded once. Raises Refused for operands that are not the problem's."""
    check(problem, operands)
    convert, times = state.lowering_of(torch.ops.prims.convert_element_type.default), state.lowering_of(aten.mul.Tensor)
    unsqueeze, dtype = state.lowering_of(aten.unsqueeze.default), operands.a.get_dtype()
    acc = torch.float64 if dtype == torch.float64 else torch.float32
    a, b = (convert(node, acc) for node in (operands.a, operands.b))
    terms = times(unsqueeze(a, 2), unsqueeze(b, 0))
    result = state.lowering_of(aten.sum.dim_IntList)(terms, [1])
    if operands.scale is not None:
        result = times(result, operands.scale)
    if operands.bias is not None:
        result = state.lowering_of(aten.add.Tensor)(result, operands.bias)
    result = convert(result, dtype)
    result.realize()
    return result
