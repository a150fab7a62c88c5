"""Our namespace of operators, for products that have none of their own in ATen.

`gemmdb::mixed_mm` must survive from the joint stage, where its cast is still visible, to the lowering.
`gemmdb::int4_mm` is a product with an int4 weight, which programs spell in many nodes or as one that has no lowering.
`gemmdb::int_mm_scaled` is an integer product with its scales, for one kernel that does both, and
`gemmdb::horizontal_mm` and `gemmdb::horizontal_int4` are several products of one activation, for one kernel that does
all. All other products keep their own operators, and node metadata holds the decision. So every pass and layout rule of
Inductor that names those operators still applies (Inductor's graph.py keeps such lists as locals).
"""

from __future__ import annotations

from typing import Any

import torch

from gemmdb.inductor.match import int4_weight as int4
from gemmdb.key.int4 import TILED, Int4Format

_SCHEMA = "mixed_mm(Tensor a, Tensor w, Tensor? scale=None, bool scale_first=False) -> Tensor"
_SCALED_SCHEMA = (
    "int_mm_scaled(Tensor a, Tensor b, Tensor? scale, ScalarType dtype, Tensor? rows=None, Tensor? bias=None) -> Tensor"
)
_INT4_SCHEMA = "int4_mm(Tensor a, Tensor w, Tensor scale, Tensor? zeros, int group, str packing) -> Tensor"
_HORIZONTAL_SCHEMA = (
    "horizontal_mm(Tensor a, Tensor[] weights, Tensor[] scales, Tensor[] biases, Tensor? a_scale=None,"
    " ScalarType? dtype=None, bool fast=False) -> Tensor"
)
_HORIZONTAL_INT4_SCHEMA = (
    "horizontal_int4(Tensor a, Tensor[] weights, Tensor[] scales, Tensor[] zeros, int group, str packing) -> Tensor"
)
_library: Any = None


def _eager(a: Any, w: Any, scale: Any = None, scale_first: bool = False) -> Any:
    weight = w.to(a.dtype)
    if scale is None:
        return a @ weight
    scale = scale.to(a.dtype)
    return a @ (weight * scale) if scale_first else (a @ weight) * scale


def _fake(a: Any, w: Any, scale: Any = None, scale_first: bool = False) -> Any:
    return a.new_empty((a.shape[0], w.shape[1]))


def _eager_int4(a: Any, w: Any, scale: Any, zeros: Any, group: int, packing: str) -> Any:
    return torch.nn.functional.linear(a, int4.dequantised(w, scale, zeros, _groups(zeros, group, packing), a.dtype))


def _fake_int4(a: Any, w: Any, scale: Any, zeros: Any, group: int, packing: str) -> Any:
    return a.new_empty((a.shape[0], w.shape[0] * (8 if packing in TILED else 1)))


def _groups(zeros: Any, group: int, packing: str) -> Int4Format:
    # What the zero points are made of makes no difference to the arithmetic.
    return Int4Format(group, "none" if zeros is None else "int8", packing)


def _eager_scaled(a: Any, b: Any, scale: Any, dtype: Any, rows: Any = None, bias: Any = None) -> Any:
    result = torch._int_mm(a, b).float()
    for factor in (None if rows is None else rows[:, None], scale):
        result = result if factor is None else result * factor
    return (result if bias is None else result + bias).to(dtype)


def _fake_scaled(a: Any, b: Any, scale: Any, dtype: Any, rows: Any = None, bias: Any = None) -> Any:
    return a.new_empty((a.shape[0], b.shape[1]), dtype=dtype)


def _eager_horizontal(
    a: Any, weights: Any, scales: Any, biases: Any, a_scale: Any = None, dtype: Any = None, fast: bool = False
) -> Any:
    if a_scale is not None:
        biases = biases or [None] * len(weights)
        given = zip(weights, scales, biases, strict=True)
        results = [torch._scaled_mm(a, w, a_scale, scale, bias, None, dtype, fast) for w, scale, bias in given]
        return torch.cat([result.reshape(-1) for result in results])
    results = [a @ weight.to(a.dtype) for weight in weights]
    results = [result * scale.to(a.dtype) for result, scale in zip(results, scales, strict=True)] if scales else results
    results = [result + bias for result, bias in zip(results, biases, strict=True)] if biases else results
    return torch.cat([result.reshape(-1) for result in results])


def _fake_horizontal(
    a: Any, weights: Any, scales: Any, biases: Any, a_scale: Any = None, dtype: Any = None, fast: bool = False
) -> Any:
    return a.new_empty((a.shape[0] * sum(weight.shape[1] for weight in weights),), dtype=dtype or a.dtype)


def _eager_horizontal_int4(a: Any, weights: Any, scales: Any, zeros: Any, group: int, packing: str) -> Any:
    given = zip(weights, scales, zeros or [None] * len(weights), strict=True)
    return torch.cat([_eager_int4(a, *tensors, group, packing).reshape(-1) for tensors in given])


def _fake_horizontal_int4(a: Any, weights: Any, scales: Any, zeros: Any, group: int, packing: str) -> Any:
    columns = sum(weight.shape[0] for weight in weights) * (8 if packing in TILED else 1)
    return a.new_empty((a.shape[0] * columns,))


def _flops(a: Any, w: Any, *_: Any, **__: Any) -> int:
    """2 m n k, from shapes."""
    return 2 * int(a[0]) * int(a[1]) * int(w[1])


def _flops_int4(a: Any, w: Any, scale: Any, zeros: Any, group: int, packing: str, **_: Any) -> int:
    """2 m n k, from shapes."""
    return 2 * int(a[0]) * int(a[1]) * int(w[0]) * (8 if packing in TILED else 1)


def _flops_horizontal(a: Any, weights: Any, *_: Any, **__: Any) -> int:
    """2 m n k of all products, from shapes."""
    return sum(_flops(a, weight) for weight in weights)


def _flops_horizontal_int4(a: Any, weights: Any, scales: Any, zeros: Any, group: int, packing: str, **_: Any) -> int:
    """2 m n k of all products, from shapes."""
    return sum(_flops_int4(a, weight, None, None, group, packing) for weight in weights)


def register() -> Any:
    """Define the operators once per process; returns the overload of `mixed_mm`.

    mixed_mm(a [M, K] float, w [K, N] int8 or uint8, scale [N] or None, scale_first) -> [M, N] of a's dtype: a @ w,
    times scale, of that dtype or fp32. The unscaled product may exceed the range of a's dtype. With `scale_first` it is
    never stored in that dtype: the scale is applied to the cast weight, or to an fp32 accumulator.
    """
    _define()
    return torch.ops.gemmdb.mixed_mm.default


def register_scaled() -> Any:
    """Define the operators once per process; returns the overload of `int_mm_scaled`.

    int_mm_scaled(a [M, K] int8, b [K, N] int8, scale [N], dtype, rows [M], bias [N]) -> [M, N] of dtype: a @ b, each
    column times its number in `scale`, each row times its number in `rows`, plus the bias. In fp32, rounded once. Each
    of these vectors is of floats, or None.
    """
    _define()
    return torch.ops.gemmdb.int_mm_scaled.default


def register_int4() -> Any:
    """Define the operators once per process; returns the overload of `int4_mm`.

    int4_mm(a [M, K] float, w, scale, zeros or None, group, packing) -> [M, N] of a's dtype: a times the int4 weight w,
    whose tensors, group size and packing `gemmdb.key.int4` describes.
    """
    _define()
    return torch.ops.gemmdb.int4_mm.default


def register_horizontal() -> Any:
    """Define the operators once per process; returns the overload of `horizontal_mm`.

    horizontal_mm(a [M, K] float, weights [K, N] of one dtype each, scales, biases, a_scale, dtype, fast) ->
    [M * all N] of `dtype`, by default a's: the products a @ w one after the other, each [M, N] row by row. `scales` and
    `biases`: a vector [N] for each weight, or no vectors. Only fp8 has an `a_scale`. It, the `scales` and `fast` are as
    for `_scaled_mm`: [M, 1] and [1, N] each, or one number each.
    """
    _define()
    return torch.ops.gemmdb.horizontal_mm.default


def register_horizontal_int4() -> Any:
    """Define the operators once per process; returns the overload of `horizontal_int4`.

    horizontal_int4(a [M, K] float, weights, scales, zeros, group, packing) -> [M * all N] of a's dtype: the products
    with the int4 weights one after the other, as `int4_mm` computes each. `zeros`: of all weights, or of none.
    """
    _define()
    return torch.ops.gemmdb.horizontal_int4.default


def _define() -> None:
    global _library
    if _library is None:
        library = torch.library.Library("gemmdb", "DEF")
        library.define(_SCHEMA)
        library.define(_SCALED_SCHEMA)
        library.define(_HORIZONTAL_SCHEMA)
        library.define(_INT4_SCHEMA)
        library.define(_HORIZONTAL_INT4_SCHEMA)
        library.impl("mixed_mm", _eager, "CompositeExplicitAutograd")
        library.impl("int_mm_scaled", _eager_scaled, "CompositeExplicitAutograd")
        library.impl("horizontal_mm", _eager_horizontal, "CompositeExplicitAutograd")
        library.impl("int4_mm", _eager_int4, "CompositeExplicitAutograd")
        library.impl("horizontal_int4", _eager_horizontal_int4, "CompositeExplicitAutograd")
        # Fake tensors take these too. `register_fake` would look for our source among all loaded modules: 60 ms.
        library.impl("mixed_mm", _fake, "Meta")
        library.impl("int_mm_scaled", _fake_scaled, "Meta")
        library.impl("horizontal_mm", _fake_horizontal, "Meta")
        library.impl("int4_mm", _fake_int4, "Meta")
        library.impl("horizontal_int4", _fake_horizontal_int4, "Meta")
        _register_flops()
        _library = library


def _register_flops() -> None:
    from torch.utils.flop_counter import register_flop_formula

    register_flop_formula(torch.ops.gemmdb.mixed_mm)(_flops)
    register_flop_formula(torch.ops.gemmdb.int_mm_scaled)(_flops)
    register_flop_formula(torch.ops.gemmdb.horizontal_mm)(_flops_horizontal)
    register_flop_formula(torch.ops.gemmdb.int4_mm)(_flops_int4)
    register_flop_formula(torch.ops.gemmdb.horizontal_int4)(_flops_horizontal_int4)
