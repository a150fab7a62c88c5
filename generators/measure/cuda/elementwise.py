"""Kernels around ATen's GEMM, fused as in Inductor's default mode, and the read kernel that flushes L2."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from gemmdb.generators.measure.cuda import epilogue
from gemmdb.generators.measure.cuda.epilogue import POINTERS
from gemmdb.generators.measure.cuda.render import (
    VECTOR,
    Launch,
    kernel,
    reduction_args,
    reduction_launch,
    unit,
    weight_args,
)
from gemmdb.kernels.triton import TL
from gemmdb.key.int4 import EXPONENT_BIAS, MX_SIZE, MXFP4, PACKED, PLAIN, ZERO_BYTES, ZERO_NUMBER, Int4Format
from gemmdb.key.layout import Layout
from gemmdb.key.operands import Operand, default_numerics
from gemmdb.key.problem import Problem

CAST_BLOCK = 1024
SIDE = 64
"""Rows and columns of the tiles for transposing an output."""


def around(problem: Problem) -> tuple[Launch | None, Launch | None]:
    """Return the kernels that Inductor's default mode runs before and after ATen's GEMM, None if it needs none."""
    mixed, own = problem.spec.dequantises, problem.int4
    follows = problem.fusion != "none" or (mixed and problem.bias is not None)
    if own is not None:
        return None if own.inner else dequantise(problem), after(problem, problem.a.dtype) if follows else None
    return cast(problem) if mixed else None, after(problem, product_dtype(problem)) if follows else None


def product_dtype(problem: Problem) -> str:
    """Return the dtype of ATen's GEMM, before the kernel that follows."""
    if problem.spec.integer:
        return "int32"
    return problem.out if problem.scaled else problem.a.dtype


def cast(problem: Problem) -> Launch:
    """Cast the dense weight of a mixed_mm, `B`, to the activation's dtype, into `cast`."""
    dtype = f"tl.{TL[problem.a.dtype]}"
    return _over_weight(problem, f"tl.store(cast + at, tl.load(B + at, mask=inside).to({dtype}), mask=inside)")


def dequantise(problem: Problem) -> Launch:
    """Unpack a weight with groups into `cast` of the activation's dtype, with the roundings of a program that unpacks
    it: [n, k], or [k, n] if its memory runs along N."""
    own, dtype = problem.int4, f"tl.{TL[problem.a.dtype]}"
    assert own is not None
    if own.along_n:
        group = f"k // {own.size} * {problem.n} + n"
        return _over_weight(problem, *_along_n(problem, own), *_scaled_number(dtype, group))
    if own.packing == PLAIN:
        return _over_weight(problem, f"number = {_number(own)}", *_added(problem, own, dtype))
    if own.packing == MXFP4:
        return _over_weight(problem, f"number = {_number(own)}", *_mxfp4(dtype))
    return _over_weight(
        problem,
        f"number = {_number(own)}",
        f"start = {_start(problem, own)}.to({dtype})",
        *_scaled_number(dtype, f"at // {own.size}"),
    )


def _number(own: Int4Format) -> str:
    """The number of the element `at` of [n, k]."""
    if own.bits == 8:
        return "tl.load(B + at, mask=inside).to(tl.int32)"
    place = "1 - at % 2" if own.packing == "high-first" else "at % 2"
    return f"((tl.load(B + at // 2, mask=inside).to(tl.int32) >> (4 * ({place})).to(tl.int32)) & 15)"


def _mxfp4(dtype: str) -> Iterator[str]:
    """Statements that store the value of E2M1 of `number`, times the power of two of its group."""
    yield "low, high = (number & 1).to(tl.float32), number >> 1 & 3"
    yield "number = tl.where(number > 7, -1.0, 1.0) * tl.where(high == 0, low * 0.5, (low + 2) * (1 << high) * 0.25)"
    yield f"exponent = tl.load(scale + at // {MX_SIZE}, mask=inside, other=0).to(tl.float32) - {EXPONENT_BIAS}"
    yield f"tl.store(cast + at, (number * tl.exp2(exponent)).to({dtype}), mask=inside)"


def _added(problem: Problem, own: Int4Format, dtype: str) -> Iterator[str]:
    """Statements that store the element `at` of [n, k] of a weight whose `number` has a sign."""
    yield f"group = at % {problem.k} // {own.size} * {problem.n} + at // {problem.k}"
    yield f"signed = ((number ^ {ZERO_NUMBER}) - {ZERO_NUMBER}).to(tl.float32)"
    yield f"scaled = (signed * tl.load(scale + group, mask=inside, other=0).to(tl.float32)).to({dtype}).to(tl.float32)"
    yield "scaled += tl.load(zeros + group, mask=inside, other=0).to(tl.float32)"
    yield f"tl.store(cast + at, scaled.to({dtype}), mask=inside)"


def _start(problem: Problem, own: Int4Format) -> str:
    """What the number of the element `at` of [n, k] counts from."""
    if own.zeros == "none":
        zero = ZERO_NUMBER if own.bits == 4 else ZERO_BYTES[problem.b.dtype]
        return f"tl.full((1,), {zero}, tl.int32)"
    if not own.zeros_in_words:
        return f"tl.load(zeros + at // {own.size}, mask=inside)"
    groups, row, many = problem.k // own.size, f"(at // {problem.k})", 32 // own.bits
    word = f"tl.load(zeros + {row} // {many} * {groups} + at % {problem.k} // {own.size}, mask=inside, other=0)"
    return f"(({word} >> ({own.bits} * ({row} % {many})).to(tl.int32)) & {(1 << own.bits) - 1})"


def _along_n(problem: Problem, own: Int4Format) -> Iterator[str]:
    """Statements that load a number and its zero point, of the element `at` of [k, n]."""
    packing, n = PACKED[own.packing], problem.n

    def place(order: tuple[int, ...], index: str) -> str:
        return f"({index} % 8 // 2 + {index} % 2 * 4)" if order[1] == 4 else f"({index} % 8)"

    yield f"k, n = (at // {n}).to(tl.int32), (at % {n}).to(tl.int32)"
    word = f"at // {8 * n} * {n} + n" if packing.packed == "k" else "at // 8"
    yield f"word = tl.load(B + ({word}), mask=inside, other=0)"
    yield f"number = (word >> (4 * {place(packing.order, packing.packed)})) & 15"
    yield f"start = tl.load(zeros + (k // {own.size} * {n // 8} + n // 8), mask=inside, other=0)"
    yield f"start = ((start >> (4 * {place(packing.zeros, 'n')})) + {packing.plus}) & 15"


def _scaled_number(dtype: str, group: str) -> tuple[str, ...]:
    """Statements that store `number` less `start`, times the scale."""
    return (
        f"shifted = (number.to({dtype}) - start).to({dtype})",
        f"scaled = shifted.to(tl.float32) * tl.load(scale + {group}, mask=inside).to(tl.float32)",
        f"tl.store(cast + at, scaled.to({dtype}), mask=inside)",
    )


def _over_weight(problem: Problem, *lines: str) -> Launch:
    at = f"at = tl.program_id(0).to(tl.int64) * {CAST_BLOCK} + tl.arange(0, {CAST_BLOCK})"
    lines = (at, "inside = at < elements", *lines)
    args = (*weight_args(problem), ("cast", POINTERS[problem.a.dtype]), ("elements", "i32"))
    elements = problem.n * problem.k
    return Launch(unit(lines, args, {"elements": elements}, 4, 3), (math.ceil(elements / CAST_BLOCK), 1, 1))


def after(problem: Problem, dtype: str) -> Launch:
    """Apply the problem's scale or elementwise epilogue to ATen's GEMM, `product` of `dtype`, into `out`. `product`
    already includes the bias, alpha and beta of an addmm and the bias and scales of a scaled_mm, and need not be kept
    again."""
    alone, own = _as_matrix(problem), problem.epilogue
    if own is not None and own.kept:
        alone = replace(alone, fusion=replace(own, kept=False).text)
    source = ("product", POINTERS[dtype])
    order = own.order if own is not None else "own"
    row, matrix = f"(idx_m % {problem.m})", f"(idx_m // {problem.m})"
    if order == "transposed":
        place = f"({matrix}.to(tl.int64) * N + idx_n) * {problem.m} + {row}"
        return _transposing(alone, source, place if problem.spec.batched else "")
    # Stored as [m, batch, n]; the heads of one matrix are stored one after another.
    place = f"({row}.to(tl.int64) * {problem.batch} + {matrix}) * N + idx_n"
    return reduction_launch(alone, 1, source, place if problem.spec.batched and order == "permuted" else "")


def _as_matrix(problem: Problem) -> Problem:
    """Return the problem as a plain GEMM of two matrices with the same epilogue."""
    op = problem.spec
    alone = replace(problem, op=op.unbiased, bias=None, scalars="unit") if op.unbiased else problem
    if op.batched:
        # The kernel is elementwise, so the batch can count as one matrix with all rows.
        a, b = (Operand(one.dtype, Layout(one.layout.order, one.layout.align)) for one in (problem.a, problem.b))
        alone = replace(problem, op="mm", batch=1, m=problem.batch * problem.m, a=a, b=b)
    if problem.scaled:
        dense = Operand(problem.out, Layout("row", 1))
        alone = replace(
            problem, op="mm", a=dense, b=dense, bias=None, scales="", groups=0, ragged="",
            numerics=default_numerics(problem.out),
        )  # fmt: skip
    return alone


def _transposing(alone: Problem, source: tuple[str, str], place: str) -> Launch:
    """As `after`, in square tiles: Inductor reads and writes whole cache lines even if it transposes."""
    body = (
        f"tile = tl.program_id(0) // tl.cdiv(N, {SIDE})",
        f"idx_m = tile * {SIDE} + tl.arange(0, {SIDE})[:, None]",
        f"idx_n = tl.program_id(0) % tl.cdiv(N, {SIDE}) * {SIDE} + tl.arange(0, {SIDE})[None, :]",
        "inside = (idx_m < M) & (idx_n < N)",
        f"acc = tl.load({source[0]} + idx_m.to(tl.int64) * N + idx_n, mask=inside, other=0)",
        *epilogue.statements(alone, ("idx_m", "idx_n"), "acc", "inside", place),
    )
    tiles = math.ceil(alone.m / SIDE) * math.ceil(alone.n / SIDE)
    return Launch(kernel(alone, body, reduction_args(alone, source), 8), (tiles, 1, 1))


def flush(words: int = VECTOR) -> Launch:
    """Read `words` int32 of `data`, a multiple of VECTOR, so that one compiled kernel flushes every cache."""
    return read(words, 4096, 8, 8)


def read(words: int, block: int, steps: int, warps: int) -> Launch:
    """Read `words` int32 of `data` and keep nothing, `steps` times `block` in each program. It evicts L2 without
    leaving dirty lines, and its time is a lower bound for any kernel that reads its operands once."""
    lines = (
        f"acc = tl.zeros(({block},), dtype=tl.int32)",
        f"for step in tl.static_range({steps}):",
        f"    at = (tl.program_id(0).to(tl.int64) * {steps} + step) * {block} + tl.arange(0, {block})",
        "    acc += tl.load(data + at, mask=at < elements, other=0)",
        # Storing the sum for one unlikely value keeps the compiler from dropping the reads.
        "if tl.sum(acc) == 123456789:",
        "    tl.store(sink, 1)",
    )
    args = (("data", "*i32"), ("sink", "*i32"), ("elements", "i32"))
    return Launch(unit(lines, args, {"elements": words}, warps, 3), (math.ceil(words / (block * steps)), 1, 1))
