"""Lower GEMMs with Inductor's own operators: with a cast or weight-only weight, on padded operands, as a sum."""

from __future__ import annotations

import math
from typing import Any

import torch

from gemmdb.inductor.lower.adapter import composed, ir_view, state
from gemmdb.inductor.lower.triton import Operands, check
from gemmdb.kernels.aten import padded_sizes
from gemmdb.kernels.config import Config
from gemmdb.kernels.default_mode import returns_view
from gemmdb.key.problem import Problem

aten = torch.ops.aten
_CAST = torch.ops.prims.convert_element_type.default


def weight_only(a: Any, w: Any, scale: Any, backend: str) -> Any:
    """Lower the GEMM as `_weight_int8pack_mm`: with ATen's kernel, or with the C++ template that dequantizes."""
    lower = state.lowering_of(aten._weight_int8pack_mm.default)
    transposed = state.lowering_of(aten.permute.default)(w, [1, 0])
    if backend == "aten":
        a = ir_view.fresh(a)
    if scale is not None and (backend == "aten" or ir_view.is_dense(scale)):
        return lower(a, transposed, ir_view.dense(scale))
    # The template asserts that its scale is a buffer, not a view.
    return _scaled(lower(a, transposed, ir_view.ones(w, a)), scale)


def cast_scale(scale: Any, a: Any) -> Any:
    """Return a scale in the activation's dtype, as in the program. Only our Triton kernels take fp32."""
    if scale is None or scale.get_dtype() == a.get_dtype():
        return scale
    return state.lowering_of(_CAST)(scale, a.get_dtype())


def cast_weight(a: Any, w: Any, scale: Any, scale_first: bool = False) -> Any:
    """Cast the weight to the dtype of `a`, then lower the GEMM. `scale_first` scales the cast weight, as in default
    mode; otherwise the scale multiplies the output."""
    weight = state.lowering_of(_CAST)(w, a.get_dtype())
    return mm(a, _scaled(weight, scale), None) if scale_first else mm(a, weight, scale)


def cast_constant(a: Any, w: Any, scale: Any, scale_first: bool) -> Any:
    """Lower like `cast_weight`, but cast a constant weight at compile time."""
    if scale_first:
        return mm(a, ir_view.cast_constant(w, a.get_dtype(), scale), None)
    return mm(a, ir_view.cast_constant(w, a.get_dtype()), scale)


def mm(a: Any, w: Any, scale: Any) -> Any:
    """Lower the GEMM, times the scale over its columns (None: no scale)."""
    return _scaled(state.lowering_of(aten.mm.default)(a, w), scale)


def _scaled(result: Any, scale: Any) -> Any:
    return result if scale is None else state.lowering_of(aten.mul.Tensor)(result, scale)


def scaled_integers(integers: Any, vectors: tuple[Any, Any, Any], dtype: torch.dtype) -> Any:
    """Return `integers` [M, N] times scales [M] and [N], plus a bias [N], as `dtype`, computed in fp32. Each may be
    None."""
    rows, scale, bias = vectors
    result = state.lowering_of(_CAST)(integers, torch.float32)
    if rows is not None:
        result = _scaled(result, state.lowering_of(aten.unsqueeze.default)(rows, 1))
    return _finished(_scaled(result, scale), bias, dtype)


def _finished(result: Any, bias: Any, dtype: torch.dtype) -> Any:
    if bias is not None:
        result = state.lowering_of(aten.add.Tensor)(result, bias)
    return state.lowering_of(_CAST)(result, dtype)


def activated(a: Any, b: Any, bias: Any, activation: str) -> Any:
    """Lower activation(a @ b + bias) as default mode does: the GEMM, and elementwise operators after it."""
    gemm = aten.mm.default if bias is None else aten.addmm.default
    result = state.lowering_of(gemm)(*((a, b) if bias is None else (bias, a, b)))
    if activation == "relu":
        return state.lowering_of(aten.relu.default)(result)
    multiply, add, cast = (state.lowering_of(one) for one in (aten.mul.Tensor, aten.add.Tensor, _CAST))
    x = cast(result, torch.float32)
    cube = multiply(multiply(x, x), multiply(x, 0.044715))
    tanh = state.lowering_of(aten.tanh.default)(multiply(add(x, cube), math.sqrt(2 / math.pi)))
    return cast(multiply(multiply(x, 0.5), add(tanh, 1)), result.get_dtype())


def summed(problem: Problem, operands: Operands) -> Any:
    """Lower a GEMM [M, N] of one row or one column to elementwise multiplications and their sum: one Inductor kernel,
    in the dtype of A, with scale and bias, computed in the accumulator's dtype and rounded once. Raises Refused if the
    operands do not match the problem."""
    check(problem, operands)
    unsqueeze, dtype = state.lowering_of(aten.unsqueeze.default), operands.a.get_dtype()
    acc = torch.float64 if dtype == torch.float64 else torch.float32
    a, b = (state.lowering_of(_CAST)(node, acc) for node in (operands.a, operands.b))
    terms = state.lowering_of(aten.mul.Tensor)(unsqueeze(a, 2), unsqueeze(b, 0))
    total = state.lowering_of(aten.sum.dim_IntList)(terms, [1])
    result = _finished(_scaled(total, operands.scale), operands.bias, dtype)
    result.realize()
    return result


def padded(config: Config, problem: Problem, operands: Operands, scalars: tuple[float, float] = (1.0, 1.0)) -> Any:
    """Lower the GEMM on zero-padded operands: a copy of each padded operand, ATen's GEMM, and a view of it. `scalars`:
    alpha and beta of an addmm. The result is dense, unless the config asks for the view, as Inductor's own pass leaves
    it. Dense rows of a padded N are a copy, which adds the bias.

    Raises Refused if the operands do not match the problem.
    """
    check(problem, operands)
    view = returns_view(config)
    m, n, k = padded_sizes(problem, int(config.values["multiple"]), view)
    a_row, b_row = problem.a.row_major, problem.b.row_major
    a = composed.padded(operands.a, (m, k), a_row)
    b = composed.padded(operands.b, (k, n), b_row)
    if operands.bias is not None and (view or (m, n) == (problem.m, problem.n)):
        bias = composed.padded_bias(operands.bias, (m, n))
        whole = composed.padded_gemm(problem.op, a, b, (bias, *scalars))
        return composed.sliced(whole, problem.m, problem.n)
    result = composed.sliced(composed.padded_gemm(problem.op, a, b), problem.m, problem.n)
    if operands.bias is not None:
        multiply, add = state.lowering_of(aten.mul.Tensor), state.lowering_of(aten.add.Tensor)
        pairs = zip((result, operands.bias), scalars, strict=True)
        return add(*(value if factor == 1 else multiply(value, factor) for value, factor in pairs))
    # The output is dense, as without padding. Later work reads the padded rows instead.
    return result if view or n == problem.n else state.lowering_of(aten.clone.default)(result)
