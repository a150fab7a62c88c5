"""Layout classes: literal sizes, strides and storage offset reduced to what a kernel can depend on.

Literal strides never match a padded tensor, a slice of a fused QKV projection or a size-1 dimension, so the key holds a
class instead: which dimension is contiguous, whether there are gaps between rows, and to how many elements every row
start is aligned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gemmdb.errors import InputError, choices

ITEM_SIZES = {
    "fp64": 8, "fp32": 4, "int32": 4, "fp16": 2, "bf16": 2, "int8": 1, "uint8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1,
}  # fmt: skip
"""Bytes per element of each dtype name that the key knows."""

ALIASES = {
    "bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64", "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
}  # fmt: skip
"""torch's names of dtypes that the key names differently."""

MEANT = {
    "float8": "fp8_e4m3", "fp8": "fp8_e4m3", "e4m3": "fp8_e4m3", "float8_e4m3": "fp8_e4m3", "e5m2": "fp8_e5m2",
    "float": "fp32", "half": "fp16", "double": "fp64", "bfloat": "bf16",
}  # fmt: skip
"""What is probably meant by names that may stand for something else, too."""

VECTOR_BYTES = 16
"""The widest single memory access of the GPUs we know. A kernel that needs more must check it itself."""

ORDERS = ("row", "col", "row-padded", "col-padded", "broadcast", "strided")
BATCHES = ("", "broadcast", "interleaved")
"""How the matrices of a batch lie in memory: one after another, with or without gaps (empty); all the same matrix, with
a stride of 0 (`broadcast`); or side by side, each row beside that of the next matrix, like the heads of an attention
[tokens, heads, size] (`interleaved`)."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The class of one matrix operand, or of a batch of them.

    `order`: `row` or `col` says which dimension has unit stride (`row`: the last); `-padded` that the leading dimension
    is larger than the row. `broadcast` has a zero stride, `strided` no unit stride at all.
    `align`: every row start is a multiple of this many elements, the largest such power of two up to 16 bytes. `batch`:
    one of BATCHES; empty for a single matrix. Interleaved matrices have gaps between their rows.
    """

    order: str
    align: int
    batch: str = ""

    def __post_init__(self) -> None:
        if self.order not in ORDERS or self.align not in (1, 2, 4, 8, 16) or self.batch not in BATCHES:
            raise InputError(f"no such layout: {self.order}:{self.align}:{self.batch}")
        if self.batch == "interleaved" and not self.order.endswith("-padded"):
            raise InputError(f"matrices that are {self.order} cannot be interleaved")


def item_size(dtype: str) -> int:
    """Bytes per element of a dtype; raises InputError for an unknown one."""
    if dtype not in ITEM_SIZES:
        raise InputError(unknown_dtype(dtype))
    return ITEM_SIZES[dtype]


def unknown_dtype(name: str) -> str:
    """Return the error message for a dtype that the key does not know."""
    known = f"unknown dtype {name!r}; {choices(name, ITEM_SIZES)}"
    meant = MEANT.get(name.removeprefix("torch."))
    return f"{known.partition('; did you mean')[0]}; did you mean {meant!r}?" if meant else known


def dtype_name(text: object) -> str:
    """The key's name of a dtype that may be given by torch's: `bf16` for `bfloat16`, `torch.bfloat16` and the dtype
    itself. Other names are returned unchanged."""
    name = str(text).removeprefix("torch.")
    return ALIASES.get(name, name if name in ITEM_SIZES else str(text))


def alignment(sizes: Sequence[int], strides: Sequence[int], offset: int, dtype: str) -> int:
    """The alignment in elements: the largest power of two, at most 16 bytes of `dtype`, that divides the offset, every
    non-unit stride and the size along the unit stride. Dimensions of size 1 are never stepped along, so their strides
    do not count."""
    steps = [offset]
    has_unit = False
    for size, stride in zip(sizes, strides, strict=True):
        if size == 1:
            continue
        steps.append(size if stride == 1 and not has_unit else stride)
        has_unit = has_unit or stride == 1
    if not has_unit:
        return 1
    widest = VECTOR_BYTES // ITEM_SIZES[dtype]
    return math.gcd(*steps, widest)


def classify(sizes: Sequence[int], strides: Sequence[int], offset: int, dtype: str) -> Layout:
    """The Layout of an operand of `sizes` ([batch,] rows, columns) with element `strides` and a storage `offset` in
    elements.

    If size-1 dimensions leave a choice, the layout counts as row-major, so that equal memory has one class.
    Raises InputError unless this is a matrix, or a batch of matrices, of a known dtype, and for a batch whose matrices
    overlap.
    """
    if len(sizes) not in (2, 3) or len(strides) != len(sizes):
        raise InputError(f"an operand has two dimensions or three, got sizes {list(sizes)} strides {list(strides)}")
    item_size(dtype)
    order = _order(*sizes[-2:], *strides[-2:])
    batch = _batch(sizes, strides) if len(sizes) == 3 else ""
    return Layout(order, alignment(sizes, strides, offset, dtype), batch)


def contiguous(
    rows: int, columns: int, dtype: str, transposed: bool = False, batch: int | None = None, interleaved: bool = False
) -> Layout:
    """The Layout of a dense [rows, columns] matrix, or of a `batch` of them; `transposed` when it is stored as
    [columns, rows]. `interleaved`: a row of every matrix of the batch lies before the next row of the first."""
    sizes, line = (rows, columns), rows if transposed else columns
    leading, step = (batch * line, line) if batch is not None and interleaved else (line, rows * columns)
    strides = (1, leading) if transposed else (leading, 1)
    if batch is not None:
        return classify((batch, *sizes), (step, *strides), 0, dtype)
    return classify(sizes, strides, 0, dtype)


def _order(rows: int, columns: int, row_stride: int, column_stride: int) -> str:
    if (rows <= 1 and columns <= 1) or 0 in (rows, columns):
        return "row"
    if (rows > 1 and row_stride == 0) or (columns > 1 and column_stride == 0):
        return "broadcast"
    if rows == 1:
        return "row" if column_stride == 1 else "col-padded"
    if columns == 1:
        return "row" if row_stride == 1 else "row-padded"
    if column_stride == 1:
        return _leading("row", row_stride, columns)
    if row_stride == 1:
        return _leading("col", column_stride, rows)
    return "strided"


def _batch(sizes: Sequence[int], strides: Sequence[int]) -> str:
    (count, *matrix), (step, *_) = sizes, strides
    inner = [1 if size == 1 else stride for size, stride in zip(matrix, strides[1:], strict=True)]
    if count <= 1 or 0 in matrix:
        return ""
    if step == 0:
        return "broadcast"
    last = [(size - 1) * stride for size, stride in zip(matrix, inner, strict=True)]
    if step > sum(last):
        return ""
    # Side by side: one row of every matrix fits between two rows of the first.
    row, leading = (last[1], inner[0]) if inner[0] > inner[1] else (last[0], inner[1])
    if min(inner) == 1 and row < step and step * (count - 1) + row < leading:
        return "interleaved"
    raise InputError(f"the matrices of a batch overlap: sizes {list(sizes)} strides {list(strides)}")


def _leading(order: str, leading: int, inner: int) -> str:
    if leading == inner:
        return order
    return f"{order}-padded" if leading > inner else "strided"
