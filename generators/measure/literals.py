"""Literal values for the classes in a Problem's key: strides and offsets of layouts, the inverse of
`gemmdb.key.layout.classify`; scalars; the sizes of groups. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate, product

from gemmdb.errors import InputError
from gemmdb.key.layout import ITEM_SIZES, VECTOR_BYTES, Layout
from gemmdb.key.operands import Bias, Operand, TensorInfo
from gemmdb.key.problem import Problem

SCALARS = {"unit": (1.0, 1.0), "beta0": (1.0, 0.0), "general": (2.0, 0.4)}
"""Representative (alpha, beta) of each scalar class."""


def literal(operand: Operand, *sizes: int) -> TensorInfo:
    """Return a tensor of `sizes` ([batch,] rows, columns) whose class is `operand`, with the smallest gaps and offset
    that give it. Raises InputError if these sizes cannot have that class: three columns are never aligned to four
    elements."""
    *batch, rows, columns = sizes
    layout, widest = operand.layout, VECTOR_BYTES // ITEM_SIZES[operand.dtype]
    offsets = (0, *(2**power for power in range(5)))
    single = _strides(layout.order, rows, columns, widest)
    found = _batched(layout, sizes, single, widest) if batch else single
    for strides, offset in product(found, offsets):
        with suppress(InputError):  # Matrices that overlap have no class.
            tensor = TensorInfo(operand.dtype, sizes, strides, offset)
            if tensor.operand == operand:
                return tensor
    raise InputError(f"a {list(sizes)} tensor cannot be {operand.text}")


def literal_bias(bias: Bias, m: int, n: int) -> TensorInfo:
    """Return the tensor of a bias for an [m, n] output: [n], [m, n] or [m, 1]. Raises InputError as `literal` does."""
    rows, columns = {"1d": (1, n), "full": (m, n), "column": (m, 1)}[bias.kind]
    for offset in (0, *(2**power for power in range(4))):
        tensor = TensorInfo(bias.dtype, (rows, columns), (columns, 1), offset)
        if tensor.operand.layout.align == bias.align:
            return tensor if bias.kind != "1d" else TensorInfo(bias.dtype, (n,), (1,), offset)
    raise InputError(f"a bias of an [{m}, {n}] GEMM cannot be {bias.text}")


def _batched(
    layout: Layout, sizes: tuple[int, ...], single: list[tuple[int, ...]], widest: int
) -> list[tuple[int, ...]]:
    """Return strides of a batch: one matrix repeated, interleaved matrices, whose rows are one row of all matrices
    apart, or contiguous matrices."""
    count, rows, columns = sizes
    if layout.batch == "broadcast":
        return [(0, *strides) for strides in single]
    if layout.batch == "interleaved":
        by_row = layout.order.startswith("row")
        inner = columns if by_row else rows
        steps = sorted(range(inner, inner + 2 * widest + 1), key=lambda step: (step % widest != 0, step))
        return [(step, step * count, 1) if by_row else (step, 1, step * count) for step in steps]
    # A gap after each matrix can make the starts of the matrices less aligned than their rows.
    gaps = (0, *(2**power for power in range(5)))
    return [(max(rows * strides[0], columns * strides[1]) + gap, *strides) for strides in single for gap in gaps]


def _strides(order: str, rows: int, columns: int, widest: int) -> list[tuple[int, ...]]:
    base, _, padded = order.partition("-")
    if base == "broadcast":
        return [(0, 1), (1, 0), (0, 0)]
    if base == "strided":
        return [(step * max(columns, 1) * 2, step) for step in range(2, 2 * widest + 1)]
    inner = columns if base == "row" else rows
    leading = range(inner + 1, inner + 2 * widest + 1) if padded else (inner,)
    aligned = sorted(leading, key=lambda stride: (stride % widest != 0, stride))
    return [(stride, 1) if base == "row" else (1, stride) for stride in aligned]


SKEW = 1.2
"""In a skewed split, the group at rank r of the non-empty ones gets a share proportional to 1 / r ** SKEW."""
GOLDEN_SECTION = 0.618
"""Distance between neighbours in size order, as a share of all groups: the golden section spreads them."""


def splits(problem: Problem) -> list[list[int]]:
    """Return the end of each group, one list per split: balanced, skewed, and sparse, with most groups empty. Equal
    lists are not repeated. The splits cover the whole ragged size. Empty for other ops."""
    if not problem.spec.grouped:
        return []
    total, groups, active = getattr(problem, problem.ragged), problem.groups, problem.active_groups
    shares = [[1.0] * active, [place**-SKEW for place in range(1, active + 1)], [1.0] * problem.fewest_groups]
    found = [_ends(_divided(total, share), groups) for share in shares]
    return list(map(list, dict.fromkeys(map(tuple, found))))


def _divided(total: int, shares: Sequence[float]) -> list[int]:
    """Divide `total` into integer parts in proportion to `shares`, largest first."""
    parts, left, weight = [], total, sum(shares)
    for share in shares:
        part = min(left, round(left * share / weight))
        parts.append(part)
        left, weight = left - part, weight - share
    return parts


def _ends(sizes: Sequence[int], groups: int) -> list[int]:
    """Return the ends of `groups` groups, of which some have these sizes and the others are empty, in an order that
    mixes large and small ones."""
    order = sorted(range(groups), key=lambda place: place * GOLDEN_SECTION % 1)
    size_of = dict(zip(order, sizes, strict=False))
    return list(accumulate(size_of.get(group, 0) for group in range(groups)))
