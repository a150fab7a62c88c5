"""Literal strides and offsets of the layout classes in a Problem's key, the inverse of `gemmdb.key.layout.classify`,
and literal values of its scalar classes."""

from __future__ import annotations

from contextlib import suppress
from itertools import product

from gemmdb.errors import InputError
from gemmdb.key.layout import ITEM_SIZES, VECTOR_BYTES, Layout
from gemmdb.key.operands import Bias, Operand, TensorInfo

SCALARS = {"unit": (1.0, 1.0), "beta0": (1.0, 0.0), "general": (2.0, 0.4)}
"""A representative (alpha, beta) of each scalar class."""


def literal(operand: Operand, *sizes: int) -> TensorInfo:
    """A tensor of `sizes` ([batch,] rows, columns) whose class is `operand`, with the smallest gaps and offset that
    give it.

    Raises InputError when these sizes cannot have that class: three columns are never aligned to four elements.
    """
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
    """The tensor of a bias for an [m, n] output: [n], [m, n] or [m, 1]. Raises InputError as `literal` does."""
    rows, columns = {"1d": (1, n), "full": (m, n), "column": (m, 1)}[bias.kind]
    for offset in (0, *(2**power for power in range(4))):
        tensor = TensorInfo(bias.dtype, (rows, columns), (columns, 1), offset)
        if tensor.operand.layout.align == bias.align:
            return tensor if bias.kind != "1d" else TensorInfo(bias.dtype, (n,), (1,), offset)
    raise InputError(f"a bias of an [{m}, {n}] product cannot be {bias.text}")


def _batched(
    layout: Layout, sizes: tuple[int, ...], single: list[tuple[int, ...]], widest: int
) -> list[tuple[int, ...]]:
    """Strides of a batch: matrices one after another, one matrix repeated, or interleaved matrices. The rows of an
    interleaved matrix are one row of all matrices apart."""
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
