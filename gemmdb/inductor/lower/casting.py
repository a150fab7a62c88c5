"""Mixed products by Inductor's own means: a cast before the product, or ATen's weight-only product."""

from __future__ import annotations

from typing import Any

import torch

from gemmdb.inductor.lower.adapter import ir_view, state

aten = torch.ops.aten


def weight_only(a: Any, w: Any, scale: Any, backend: str) -> Any:
    """The product, lowered as `_weight_int8pack_mm`: with ATen's kernel, or with the C++ template that dequantises."""
    lower = state.lowering_of(aten._weight_int8pack_mm.default)
    transposed = state.lowering_of(aten.permute.default)(w, [1, 0])
    if backend == "aten":
        a = ir_view.fresh(a)
    if scale is not None and (backend == "aten" or ir_view.is_dense(scale)):
        return lower(a, transposed, ir_view.dense(scale))
    result = lower(a, transposed, ir_view.ones(w, a))
    # The template asserts that its scale is a buffer, not a view.
    return result if scale is None else state.lowering_of(aten.mul.Tensor)(result, scale)


def like(scale: Any, a: Any) -> Any:
    """A scale in the dtype of the activation, as the program multiplies by it. Only our Triton kernels take fp32."""
    if scale is None or scale.get_dtype() == a.get_dtype():
        return scale
    return state.lowering_of(torch.ops.prims.convert_element_type.default)(scale, a.get_dtype())


def cast_product(a: Any, w: Any, scale: Any, scale_first: bool = False) -> Any:
    """The product with the weight cast to the dtype of `a` first. `scale_first` scales the cast weight, as in default
    mode; otherwise the scale multiplies the product."""
    weight = state.lowering_of(torch.ops.prims.convert_element_type.default)(w, a.get_dtype())
    if not scale_first:
        return product(a, weight, scale)
    return product(a, state.lowering_of(aten.mul.Tensor)(weight, scale), None)


def constant_product(a: Any, w: Any, scale: Any, scale_first: bool) -> Any:
    """Like `cast_product`, but a constant weight is cast at compile time."""
    if scale_first:
        return product(a, ir_view.cast_constant(w, a.get_dtype(), scale), None)
    return product(a, ir_view.cast_constant(w, a.get_dtype()), scale)


def scaled_integers(integers: Any, vectors: tuple[Any, Any, Any], dtype: torch.dtype) -> Any:
    """`integers` [M, N] times scales [M] and [N], plus a bias [N], as `dtype`, computed in fp32. Each may be None."""
    rows, scale, bias = vectors
    convert, times = state.lowering_of(torch.ops.prims.convert_element_type.default), state.lowering_of(aten.mul.Tensor)
    result = convert(integers, torch.float32)
    if rows is not None:
        result = times(result, state.lowering_of(aten.unsqueeze.default)(rows, 1))
    if scale is not None:
        result = times(result, scale)
    if bias is not None:
        result = state.lowering_of(aten.add.Tensor)(result, bias)
    return convert(result, dtype)


def product(a: Any, w: Any, scale: Any) -> Any:
    """The product, times the scale over its columns (None: no scale)."""
    result = state.lowering_of(aten.mm.default)(a, w)
    return result if scale is None else state.lowering_of(aten.mul.Tensor)(result, scale)
