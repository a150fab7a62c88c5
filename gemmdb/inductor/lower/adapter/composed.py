"""GEMMs built from Inductor's own lowerings: on padded operands, and with an int4 weight as elementwise work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.kernel import mm
from torch._inductor.lowering import fallback_handler, lowerings
from torch._inductor.select_algorithm import realize_inputs
from torch._inductor.virtualized import ops
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from gemmdb.key.int4 import IN_WORDS, INT4, MXFP4, PACKED, PLAIN, ZERO_BYTES, ZERO_NUMBER, Int4Format

aten = torch.ops.aten


def padded(matrix: Any, sizes: Sequence[int], row_major: bool) -> Any:
    """Zero-pad `matrix` [rows, columns] at its end up to `sizes`. Keeps the memory order."""
    have = [int(size) for size in matrix.get_size()]
    if have == list(sizes):
        return matrix
    missing = [size - old for size, old in zip(sizes, have, strict=True)]
    if not isinstance(matrix, ir.TensorBox):
        matrix = ir.TensorBox(matrix)
    stored = matrix if row_major else _turned(matrix)
    rows, columns = missing if row_major else missing[::-1]
    # The lengths start with the last dimension, each as (before, after).
    stored = lowerings[aten.constant_pad_nd.default](stored, [0, columns, 0, rows], 0)
    stored = ir.TensorBox(ir.ExternKernel.require_contiguous(ir.ExternKernel.realize_input(stored)))
    return stored if row_major else _turned(stored)


def padded_bias(bias: Any, sizes: Sequence[int]) -> Any:
    """Zero-pad a `bias` that is broadcast to `sizes` [rows, columns] at its end. Dimensions of size 1 stay."""
    have = [int(size) for size in bias.get_size()]
    missing = [size - old if old != 1 else 0 for size, old in zip(sizes[-len(have) :], have, strict=True)]
    if not any(missing):
        return bias
    if not isinstance(bias, ir.TensorBox):
        bias = ir.TensorBox(bias)
    # The lengths start with the last dimension, each as (before, after).
    lengths = [length for after in reversed(missing) for length in (0, after)]
    return lowerings[aten.constant_pad_nd.default](bias, lengths, 0)


def padded_gemm(op: str, a: Any, b: Any, bias: tuple[Any, float, float] | None = None) -> Any:
    """ATen's GEMM [M, N] of `a` and `b` (int32 for int_mm), plus a `bias` with alpha and beta."""
    a, b = realize_inputs(a, b)
    dtype = torch.int32 if op == "int_mm" else a.get_dtype()
    layout = ir.FixedLayout(a.get_device(), dtype, [a.get_size()[0], b.get_size()[1]])
    if bias is not None:
        value, alpha, beta = bias
        return mm.aten_addmm.bind([realize_inputs(value), a, b], layout, alpha=alpha, beta=beta).output_node()
    choice = mm.aten__int_mm if op == "int_mm" else mm.aten_mm
    return choice.bind([a, b], layout).output_node()


def sliced(matrix: Any, rows: int, columns: int) -> Any:
    """Return the first rows and columns of `matrix`, as a view."""
    for dim, size in enumerate((rows, columns)):
        if int(matrix.get_size()[dim]) != size:
            matrix = lowerings[aten.slice.Tensor](matrix, dim, 0, size)
    return matrix


def _turned(matrix: Any) -> Any:
    return lowerings[aten.permute.default](matrix, [1, 0])


Loader = Callable[[Sequence[Any]], Any]


def tiled_gemm(a: Any, packed: Any, size: int, scale: Any) -> Any:
    """Lower `aten._weight_int4pack_mm`, which has no lowering in Inductor."""
    lower = fallback_handler(aten._weight_int4pack_mm.default, add_to_fallback_set=False)
    return lower(a, packed, size, scale)


def int4_weight(
    packed: Any, scale: Any, zeros: Any, groups: Int4Format, sizes: tuple[Any, Any], dtype: torch.dtype
) -> Any:
    """Dequantize the weight [K, N] to `dtype` in one elementwise computation, in fp32 and rounded once, laid out in
    memory like the packed one. `sizes`: N and K."""
    number = (_tiled if groups.inner else _unpacked)(packed.make_loader(), groups, packed.get_dtype())
    factor, start = scale.make_loader(), None if zeros is None else zeros.make_loader()
    zero = ZERO_NUMBER if groups.bits == 4 else ZERO_BYTES["int8" if packed.get_dtype() is torch.int8 else "uint8"]

    def inner(index: Sequence[Any]) -> Any:
        n, k = index[::-1] if groups.along_n else index
        group = FloorDiv(k, groups.size)
        value = ops.to_dtype(number(n, k), torch.float32)
        if groups.inner:
            by, added = (_float(factor([group, n, which])) for which in (0, 1))
            return ops.to_dtype(ops.add(ops.mul(_less(value, ZERO_NUMBER), by), added), dtype)
        if groups.packing == PLAIN:
            assert start is not None
            signed = _less(ops.to_dtype(ops.bitwise_xor(number(n, k), _int(8)), torch.float32), ZERO_NUMBER)
            scaled = ops.mul(signed, _float(factor([group, n])))
            return ops.to_dtype(ops.add(scaled, _float(start([group, n]))), dtype)
        place = [group, n] if groups.along_n else [n, group]
        if groups.packing == MXFP4:
            return ops.to_dtype(ops.mul(_e2m1(number(n, k)), _power(factor(place))), dtype)
        if start is None:
            value = _less(value, zero)
        else:
            words = groups.zeros in (INT4, IN_WORDS)
            value = ops.sub(value, _float(_zero(start, groups, n, group) if words else start(place)))
        return ops.to_dtype(ops.mul(value, _float(factor(place))), dtype)

    ranges = list(sizes[::-1] if groups.along_n else sizes)
    made = ir.Pointwise.create(device=packed.get_device(), dtype=dtype, inner_fn=inner, ranges=ranges)
    return made if groups.along_n else _turned(made)


def _unpacked(load: Loader, groups: Int4Format, dtype: torch.dtype) -> Callable[[Any, Any], Any]:
    """The numbers of a weight of bytes, or of words of 32 bits."""
    packing = PACKED[groups.packing]
    many = 8 * dtype.itemsize // packing.bits

    def number(n: Any, k: Any) -> Any:
        along, other = (n, k) if packing.packed == "n" else (k, n)
        word = FloorDiv(along, many)
        index = [word, other] if packing.packed == packing.rows else [other, word]
        found = ops.to_dtype(load(index), torch.int32)
        return found if many == 1 else _bits(found, packing.bits, _place(along, packing.order, many))

    return number


def _zero(load: Loader, groups: Int4Format, n: Any, group: Any) -> Any:
    """The zero point of a group of a column, of those that share words."""
    packing = PACKED[groups.packing]
    word = FloorDiv(n, packing.in_word)
    index = [group, word] if groups.along_n else [word, group]
    stored = _bits(load(index), packing.bits, _place(n, packing.zero_order, packing.in_word))
    more = ops.constant(packing.plus, torch.int32)
    return ops.bitwise_and(ops.add(stored, more), ops.constant(15, torch.int32)) if packing.plus else stored


def _place(index: Any, order: Sequence[int], many: int) -> Any:
    """In which bits of a word, which has `many` numbers, number `index` lies by `order`."""
    if order == (1, 0):
        return ModularIndexing(index, 2, many // 2) * 2 + 1 - ModularIndexing(index, 1, 2)
    if order[1:2] == (4,):  # Both halves of a word in turn.
        return ModularIndexing(index, 2, 4) + 4 * ModularIndexing(index, 1, 2)
    return ModularIndexing(index, 1, many)


def _tiled(load: Loader, groups: Int4Format, dtype: torch.dtype) -> Callable[[Any, Any], Any]:
    step = 16 * groups.inner

    def number(n: Any, k: Any) -> Any:
        lane = 4 * ModularIndexing(n, 1, 8) + ModularIndexing(k, 2, 4)
        word = load([FloorDiv(n, 8), FloorDiv(k, step), lane, ModularIndexing(k, 32, groups.inner // 2)])
        return _bits(word, 4, ModularIndexing(k, 8, 4) + 4 * ModularIndexing(k, 1, 2))

    return number


def _bits(word: Any, bits: int, place: Any) -> Any:
    """Extract so many bits of int32 words: the number at `place`."""
    by = ops.index_expr(bits * place, torch.int32)
    return ops.bitwise_and(ops.bitwise_right_shift(word, by), ops.constant((1 << bits) - 1, torch.int32))


def _e2m1(number: Any) -> Any:
    """The value in fp32 of a number of four bits: a sign, an exponent of two bits, and one bit of the mantissa."""
    magnitude, one = ops.bitwise_and(number, _int(7)), _int(1)
    exponent, half = ops.bitwise_right_shift(magnitude, one), _float(ops.bitwise_and(magnitude, one))
    power = _float(ops.bitwise_left_shift(one, exponent))
    least = ops.mul(half, ops.constant(0.5, torch.float32))
    more = ops.mul(ops.mul(ops.add(half, ops.constant(2.0, torch.float32)), power), ops.constant(0.25, torch.float32))
    value = ops.where(ops.eq(exponent, _int(0)), least, more)
    return ops.where(ops.gt(number, _int(7)), ops.neg(value), value)


def _power(exponent: Any) -> Any:
    """2 to the power of a byte less 127, in fp32, by its bits: that of 0 has no bit of the exponent."""
    byte = ops.to_dtype(exponent, torch.int32)
    bits = ops.where(ops.eq(byte, _int(0)), _int(1 << 22), ops.bitwise_left_shift(byte, _int(23)))
    return ops.to_dtype_bitcast(bits, torch.float32, torch.int32)


def _int(value: int) -> Any:
    return ops.constant(value, torch.int32)


def _float(value: Any) -> Any:
    return ops.to_dtype(value, torch.float32)


def _less(value: Any, number: int) -> Any:
    return ops.sub(value, ops.constant(float(number), torch.float32))
