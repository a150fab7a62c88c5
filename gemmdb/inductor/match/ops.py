"""gemmdb's operators for GEMMs without an ATen operator.

`mixed_mm` must survive from the joint stage, where its cast is still visible, to the lowering; `int4_mm` replaces many
nodes, or one without a lowering; `int_mm_scaled`, `mm_activation`, `horizontal_mm` and `horizontal_int4` each become
one kernel; `engine_mm` stands for an engine's operator until a kernel was timed against it; `short_sum` sums what the
experts of a token return. All other GEMMs keep their operators, with the decision in node metadata, so that Inductor's
passes and layout rules for those operators still apply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gemmdb.inductor.match.engine_ops import BLOCK, ENGINE_OPS, ZEROS, Operands
from gemmdb.key.int4 import (
    E2M1,
    EXPONENT_BIAS,
    IN_WORDS,
    INT4,
    MXFP4,
    PACKED,
    PLAIN,
    TILED,
    WORDS,
    ZERO_BYTES,
    ZERO_NUMBER,
    Int4Format,
)  # fmt: skip
from gemmdb.key.layout import dtype_name

_library: Any = None


def overload(name: str) -> Any:
    """Return our operator's overload by name. Define all operators once per process."""
    global _library
    if _library is None:
        from torch.utils.flop_counter import register_flop_formula

        library = torch.library.Library("gemmdb", "DEF")
        for one, (arguments, eager, fake, flops) in _OPERATORS.items():
            library.define(f"{one}({arguments}) -> Tensor")
            library.impl(one, eager, "CompositeExplicitAutograd")
            # Fake tensors use these too. `register_fake` would search all loaded modules for our source: 60 ms.
            library.impl(one, fake, "Meta")
            register_flop_formula(getattr(torch.ops.gemmdb, one))(flops)
        _library = library
    return getattr(torch.ops.gemmdb, name).default


def int4_format(zeros: Any, group: int, packing: str) -> Int4Format:
    """Return the weight format of an `int4_mm`. The dtype of zero points with a number each does not affect the
    arithmetic, except where it is always the activation's."""
    if packing in WORDS:
        return Int4Format(group, INT4, packing)
    if zeros is None:
        return Int4Format(group, "none", packing)
    dtype = zeros.dtype if isinstance(zeros, torch.Tensor) else zeros.get_dtype()
    if packing == PLAIN:
        return Int4Format(group, dtype_name(dtype), packing)
    return Int4Format(group, zeros_in_words(packing) if dtype is torch.int32 else "int8", packing)


def zeros_in_words(packing: str) -> str:
    """Return what the key calls zero points that share words of 32 bits."""
    return IN_WORDS if PACKED[packing].bits == 8 else INT4


def weight_dtype(stored: torch.dtype, packing: str) -> str:
    """Return the dtype in the key of a packed weight whose tensor is of dtype `stored`."""
    own = PACKED[packing].dtype if packing in PACKED else INT4
    return own or ("int8" if stored is torch.int8 else "uint8")


def numbers(packed: torch.Tensor, own: Int4Format) -> torch.Tensor:
    """Unpack the numbers of a packed weight as uint8 [n, k]; as they are if a weight has bytes. Those with a sign are 8
    more than they mean."""
    if own.bits == 8:
        return packed.view(torch.uint8) if packed.dtype is torch.int32 else packed
    if not own.inner:
        packing = PACKED[own.packing]
        words = packed.view(torch.uint8) if len(packing.order) == 2 else packed
        found = _unpacked(words, packing.order, 0 if packing.packed == packing.rows else 1)
        found = found ^ ZERO_NUMBER if packing.added else found
        return found if packing.rows == "n" else found.t()
    tiles, steps = packed.shape[:2]
    # A word of lane 4 r + c has row r of eight. Its bits 4 i and 16 + 4 i are columns 2 c and 2 c + 1 of eight columns.
    words = packed.reshape(tiles, steps, 8, 4, own.inner // 2)
    shifts = 4 * torch.arange(4, device=packed.device)
    parts = [(words.unsqueeze(-1) >> (shifts + half)).bitwise_and(15).to(torch.uint8) for half in (0, 16)]
    found = torch.stack(parts, dim=-1)  # [n / 8, k / step, row, column pair, word, eight columns, half]
    return found.permute(0, 2, 1, 4, 5, 3, 6).reshape(tiles * 8, steps * 16 * own.inner)


def _unpacked(words: torch.Tensor, order: Sequence[int], along: int, bits: int = 4) -> torch.Tensor:
    """Return the numbers of words [rows, columns] as uint8. Those of a word lie in it by `order`, and follow each other
    along dimension `along` of the result."""
    mask = (1 << bits) - 1
    parts = [(words >> (bits * place)).bitwise_and(mask).to(torch.uint8) for place in order]
    return torch.stack(parts, dim=along + 1).flatten(along, along + 1)


def with_rows(packed: torch.Tensor, rows: torch.Tensor, own: Int4Format) -> torch.Tensor:
    """Return a packed weight of four bits [n, k] whose row j along K is row rows[j] of `packed`."""
    packing, found = PACKED[own.packing], numbers(packed, own).index_select(1, rows)
    along, many = 0 if packing.packed == packing.rows else 1, len(packing.order)
    parts = (found if packing.rows == "n" else found.t()).unflatten(along, (-1, many)).unbind(along + 1)
    words = torch.zeros(parts[0].shape, dtype=torch.uint8 if many == 2 else torch.int32, device=packed.device)
    for part, place in zip(parts, packing.order, strict=True):
        words |= part.to(words.dtype) << (4 * place)
    return words.view(packed.dtype)


def dequantised(
    packed: torch.Tensor, scale: torch.Tensor, zeros: torch.Tensor | None, own: Int4Format, dtype: torch.dtype
) -> torch.Tensor:
    """Dequantize the weight [n, k] with groups to `dtype`, computed in that dtype as in a program. `scale`, `zeros`:
    see `gemmdb.key.int4`."""
    found = numbers(packed, own)
    weight = found.to(dtype).reshape(found.shape[0], -1, own.size)
    if own.inner:
        by, added = (scale[..., which].t().to(dtype).unsqueeze(-1) for which in (0, 1))
        return ((weight - ZERO_NUMBER) * by + added).view(found.shape)
    packing = PACKED[own.packing]
    if packing.added:
        assert zeros is not None
        by, added = (one.t().to(dtype).unsqueeze(-1) for one in (scale, zeros))
        return ((weight - ZERO_NUMBER) * by + added).view(found.shape)
    if own.packing == MXFP4:
        values = torch.tensor(E2M1, dtype=dtype, device=found.device)[found.to(torch.int32)]
        exponent = scale.to(torch.float64 if dtype is torch.float64 else torch.float32) - EXPONENT_BIAS
        return (values.reshape(weight.shape) * torch.exp2(exponent).to(dtype).unsqueeze(-1)).view(found.shape)
    if packing.rows == "k":
        assert zeros is not None
        scale, zeros = scale.t(), ((_unpacked(zeros, packing.zeros, 1) + packing.plus) & 15).t()
    elif own.zeros_in_words:
        assert zeros is not None
        zeros = _unpacked(zeros, packing.zero_order, 0, own.bits)
    zero = ZERO_NUMBER if own.bits == 4 else ZERO_BYTES[weight_dtype(packed.dtype, own.packing)]
    start = zero if zeros is None else zeros.to(dtype).unsqueeze(-1)
    if own.scale and dtype is not torch.float64:
        return ((weight - start) * scale.unsqueeze(-1)).to(dtype).view(found.shape)
    return ((weight - start) * scale.to(dtype).unsqueeze(-1)).view(found.shape)


def _mixed_mm(a: Any, w: Any, scale: Any = None, scale_first: bool = False) -> Any:
    """a [M, K] float @ w [K, N] int8 or uint8, times a scale [N] of a's dtype or fp32 -> [M, N] of a's dtype. The
    unscaled GEMM may exceed the range of that dtype. With `scale_first` it is never stored in it: the scale is applied
    to the cast weight, or to an fp32 accumulator."""
    weight = w.to(a.dtype)
    if scale is None:
        return a @ weight
    scale = scale.to(a.dtype)
    return a @ (weight * scale) if scale_first else (a @ weight) * scale


def _int_mm_scaled(a: Any, b: Any, scale: Any, dtype: Any, rows: Any = None, bias: Any = None) -> Any:
    """a [M, K] int8 @ b [K, N] int8, times `scale` [N] per column and `rows` [M] per row, plus the `bias` [N] -> [M, N]
    of `dtype`. Computed in fp32 and rounded once. Each vector is of floats, or None."""
    result = torch._int_mm(a, b).float()
    for factor in (None if rows is None else rows[:, None], scale):
        result = result if factor is None else result * factor
    return (result if bias is None else result + bias).to(dtype)


def _mm_activation(a: Any, b: Any, activation: str, bias: Any = None) -> Any:
    """activation(a [M, K] @ b [K, N] + bias [N]) -> [M, N] of a's dtype. `activation`: one of
    `gemmdb.kernels.cublaslt.ACTIVATIONS`."""
    result = a @ b if bias is None else torch.addmm(bias, a, b)
    return torch.relu(result) if activation == "relu" else torch.nn.functional.gelu(result, approximate="tanh")


def _int4_mm(a: Any, w: Any, scale: Any, zeros: Any, group: int, packing: str, order: Any = None) -> Any:
    """a [M, K] float times the int4 weight `w`, whose tensors, group size and packing `gemmdb.key.int4` describes ->
    [M, N] of a's dtype. `order` [K]: the columns of `a` that the rows of the weight multiply, None for all in turn."""
    a = a if order is None else a[:, order]
    return torch.nn.functional.linear(a, dequantised(w, scale, zeros, int4_format(zeros, group, packing), a.dtype))


def _horizontal_mm(
    a: Any, weights: Any, scales: Any, biases: Any, a_scale: Any = None, dtype: Any = None, fast: bool = False
) -> Any:
    """The GEMMs a [M, K] @ each weight [K, N], concatenated, each [M, N] row-major -> [M * total N] of `dtype`, by
    default a's. `scales` and `biases`: a vector [N] per weight, or no vectors. Only fp8 has an `a_scale`. `a_scale`,
    `scales` and `fast` are as for `_scaled_mm`: [M, 1] and [1, N] each, or one number each."""
    results = []
    for weight, scale, bias in zip(
        weights, *(given or [None] * len(weights) for given in (scales, biases)), strict=True
    ):
        if a_scale is not None:
            result = torch._scaled_mm(a, weight, a_scale, scale, bias, None, dtype, fast)
        else:
            result = _mixed_mm(a, weight, scale)
            result = result if bias is None else result + bias
        results.append(result.reshape(-1))
    return torch.cat(results)


def _horizontal_int4(a: Any, weights: Any, scales: Any, zeros: Any, group: int, packing: str) -> Any:
    """Run `_int4_mm` with each int4 weight and concatenate -> [M * total N]. `zeros`: of all weights, or of none."""
    given = zip(weights, scales, zeros or [None] * len(weights), strict=True)
    return torch.cat([_int4_mm(a, *tensors, group, packing).reshape(-1) for tensors in given])


def _engine_mm(a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any, dtype: Any, name: str, zeros: Any = None) -> Any:
    """Call the engine's operator `name`, a key of `engine_ops.ENGINE_OPS`, on its own operands -> [M, N] of `dtype`."""
    return ENGINE_OPS[name](Operands(a, b, scale_a, scale_b, bias, dtype, zeros=zeros))


def engine_columns(b: Any, name: str) -> Any:
    """Return N from the sizes of the weight of an engine's operator."""
    return b[0] if {BLOCK, ZEROS} & {*ENGINE_OPS[name].roles} else b[1]


def int4_columns(sizes: Sequence[Any], packing: str) -> Any:
    """Return N of a packed int4 weight of these sizes."""
    if packing in WORDS:
        return sizes[1] * (8 if PACKED[packing].packed == "n" else 1)
    return sizes[0] * (8 if packing in TILED else 1)


def _flops(a: Any, w: Any, *_: Any, **__: Any) -> int:
    """Return 2 m n k, from shapes."""
    return 2 * int(a[0]) * int(a[1]) * int(w[1])


def _flops_int4(a: Any, w: Any, scale: Any, zeros: Any, group: int, packing: str, **_: Any) -> int:
    return _flops(a, (0, int4_columns(w, packing)))


_OPERATORS: dict[str, tuple[str, Callable[..., Any], Callable[..., Any], Callable[..., int]]] = {
    "mixed_mm": (
        "Tensor a, Tensor w, Tensor? scale=None, bool scale_first=False", _mixed_mm,
        lambda a, w, *_: a.new_empty((a.shape[0], w.shape[1])),
        _flops,
    ),
    "int_mm_scaled": (
        "Tensor a, Tensor b, Tensor? scale, ScalarType dtype, Tensor? rows=None, Tensor? bias=None", _int_mm_scaled,
        lambda a, b, scale, dtype, *_: a.new_empty((a.shape[0], b.shape[1]), dtype=dtype),
        _flops,
    ),
    "int4_mm": (
        "Tensor a, Tensor w, Tensor scale, Tensor? zeros, int group, str packing, Tensor? order=None", _int4_mm,
        lambda a, w, scale, zeros, group, packing, order=None: a.new_empty(
            (a.shape[0], int4_columns(w.shape, packing))
        ),
        _flops_int4,
    ),
    "engine_mm": (
        "Tensor a, Tensor b, Tensor? scale_a, Tensor scale_b, Tensor? bias, ScalarType dtype, str name,"
        " Tensor? zeros=None", _engine_mm,
        lambda a, b, scale_a, scale_b, bias, dtype, name, zeros=None: a.new_empty(
            (a.shape[0], engine_columns(b.shape, name)), dtype=dtype
        ),
        lambda a, b, scale_a, scale_b, bias, dtype, name, *_, **__: _flops(a, (0, engine_columns(b, name))),
    ),
    "mm_activation": (
        "Tensor a, Tensor b, str activation, Tensor? bias=None", _mm_activation,
        lambda a, b, activation, bias=None: a.new_empty((a.shape[0], b.shape[1])),
        lambda a, b, *_, **__: _flops(a, b),
    ),
    "short_sum": (
        "Tensor rows, ScalarType dtype", lambda rows, dtype: rows.sum(1, dtype=dtype).contiguous(),
        lambda rows, dtype: rows.new_empty((rows.shape[0], rows.shape[2]), dtype=dtype),
        lambda *_, **__: 0,
    ),
    "horizontal_mm": (
        "Tensor a, Tensor[] weights, Tensor[] scales, Tensor[] biases, Tensor? a_scale=None, ScalarType? dtype=None,"
        " bool fast=False", _horizontal_mm,
        lambda a, weights, scales, biases, a_scale=None, dtype=None, fast=False: a.new_empty(
            (a.shape[0] * sum(weight.shape[1] for weight in weights),), dtype=dtype or a.dtype
        ),
        lambda a, weights, *_, **__: sum(_flops(a, weight) for weight in weights),
    ),
    "horizontal_int4": (
        "Tensor a, Tensor[] weights, Tensor[] scales, Tensor[] zeros, int group, str packing", _horizontal_int4,
        lambda a, weights, scales, zeros, group, packing: a.new_empty(
            (a.shape[0] * sum(int4_columns(weight.shape, packing) for weight in weights),)
        ),
        lambda a, weights, scales, zeros, group, packing, **_: sum(
            _flops_int4(a, weight, None, None, group, packing) for weight in weights
        ),
    ),
}  # fmt: skip
"""By name: arguments, eager implementation, fake-tensor implementation, and floating-point operations from shapes."""
