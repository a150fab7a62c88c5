"""Literal strides and offsets of the layout classes in a Problem's key, the inverse of `gemmdb.layout.classify`, and
literal values of its scalar classes."""

from __future__ import annotations

from itertools import product

from gemmdb.errors import InputError
from gemmdb.layout import ITEM_SIZES, VECTOR_BYTES
from gemmdb.operands import Bias, Operand, TensorInfo

SCALARS = {"unit": (1.0, 1.0), "beta0": (1.0, 0.0), "general": (2.0, 0.4)}
"""A representative (alpha, beta) of each scalar class."""


def literal(operand: Operand, rows: int, columns: int) -> TensorInfo:
    """A [rows, columns] tensor whose class is `operand`, with the smallest gaps and offset that give it.

    Raises InputError when these sizes cannot have that class: three columns are never aligned to four elements.
    """
    widest = VECTOR_BYTES // ITEM_SIZES[operand.dtype]
    offsets = (0, *(2**power for power in range(5)))
    for strides, offset in product(_strides(operand.layout.order, rows, columns, widest), offsets):
        tensor = TensorInfo(operand.dtype, (rows, columns), strides, offset)
        if tensor.operand == operand:
            return tensor
    raise InputError(f"a [{rows}, {columns}] tensor cannot be {operand.text}")


def literal_bias(bias: Bias, m: int, n: int) -> TensorInfo:
    """The tensor of a bias for an [m, n] output: [n], [m, n] or [m, 1]. Raises InputError as `literal` does."""
    rows, columns = {"1d": (1, n), "full": (m, n), "column": (m, 1)}[bias.kind]
    for offset in (0, *(2**power for power in range(4))):
        tensor = TensorInfo(bias.dtype, (rows, columns), (columns, 1), offset)
        if tensor.operand.layout.align == bias.align:
            return tensor if bias.kind != "1d" else TensorInfo(bias.dtype, (n,), (1,), offset)
    raise InputError(f"a bias of an [{m}, {n}] product cannot be {bias.text}")


def _strides(order: str, rows: int, columns: int, widest: int) -> list[tuple[int, int]]:
    base, _, padded = order.partition("-")
    if base == "broadcast":
        return [(0, 1), (1, 0), (0, 0)]
    if base == "strided":
        return [(step * max(columns, 1) * 2, step) for step in range(2, 2 * widest + 1)]
    inner = columns if base == "row" else rows
    leading = range(inner + 1, inner + 2 * widest + 1) if padded else (inner,)
    aligned = sorted(leading, key=lambda stride: (stride % widest != 0, stride))
    return [(stride, 1) if base == "row" else (1, stride) for stride in aligned]
