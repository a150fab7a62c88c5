"""The parts of a Problem: operands and bias as the key sees them, numerics, and literal tensors to derive them from."""

from __future__ import annotations

from dataclasses import dataclass

from gemmdb.errors import InputError, choices
from gemmdb.key.layout import BATCHES, ITEM_SIZES, Layout, classify, contiguous, item_size

BIAS_KINDS = ("1d", "full", "column")
FP32_MODES = ("ieee", "tf32", "bf16")
HALF_BYTES = ("int4", "fp4_e2m1")
"""The dtypes of a weight that has no whole bytes, so no strides: `gemmdb.key.int4` says how it lies."""
_ALIGNS = {str(align): align for align in (1, 2, 4, 8, 16)}
_NAMED_BATCHES = [[name] for name in BATCHES if name]


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor of a GEMM as the key sees it: dtype name, layout order and alignment in elements."""

    dtype: str
    layout: Layout

    def __post_init__(self) -> None:
        if self.dtype not in HALF_BYTES:
            item_size(self.dtype)

    @property
    def text(self) -> str:
        """`bf16:row:8`, with the batch class if the matrices do not follow each other: `bf16:row:8:broadcast`."""
        layout = self.layout
        text = f"{self.dtype}:{layout.order}:{layout.align}"
        return f"{text}:{layout.batch}" if layout.batch else text

    @property
    def row_major(self) -> bool:
        """Whether the last dimension is contiguous in memory."""
        return self.layout.order.startswith("row")

    @classmethod
    def parse(cls, text: str) -> Operand:
        """The operand of a text; raises InputError."""
        dtype, *parts = text.split(":")
        if len(parts) not in (2, 3) or parts[1] not in _ALIGNS or parts[2:] not in ([], *_NAMED_BATCHES):
            raise InputError(f"malformed operand {text[:80]!r}")
        return cls(dtype, Layout(parts[0], _ALIGNS[parts[1]], *parts[2:]))


@dataclass(frozen=True, slots=True)
class Bias:
    """The bias of an addmm: `1d` [N], `full` [M, N] or `column` [M, 1], with its dtype and alignment in elements."""

    kind: str
    dtype: str
    align: int

    def __post_init__(self) -> None:
        if self.kind not in BIAS_KINDS or self.dtype not in ITEM_SIZES or self.align not in (1, 2, 4, 8, 16):
            raise InputError(f"no such bias: {self.kind}:{self.dtype}:{self.align}; kinds: {', '.join(BIAS_KINDS)}")

    @property
    def text(self) -> str:
        """`1d:bf16:8`."""
        return f"{self.kind}:{self.dtype}:{self.align}"

    @classmethod
    def parse(cls, text: str) -> Bias | None:
        """The bias of a text, None for `none`; raises InputError."""
        if text == "none":
            return None
        parts = text.split(":")
        if len(parts) != 3 or parts[2] not in _ALIGNS:
            raise InputError(f"malformed bias {text[:80]!r}")
        return cls(parts[0], parts[1], _ALIGNS[parts[2]])


@dataclass(frozen=True, slots=True)
class Numerics:
    """What the arithmetic may do, beyond the dtypes. A measurement counts only for the same numerics.

    `fp32`: how fp32 inputs are multiplied (`ieee`, `tf32`, or `bf16` as oneDNN may); always `ieee` for other dtypes.
    `acc`: accumulate dtype. `reduced`: partial sums may be rounded to the output dtype (cuBLAS split-K default).
    `deterministic`: the run asked for deterministic algorithms. `fast`: an fp8 GEMM may keep its sums in the matrix
    unit's own accumulator, which has fewer bits than `acc` (torch's `use_fast_accum`).
    """

    fp32: str = "ieee"
    acc: str = "fp32"
    reduced: bool = False
    deterministic: bool = False
    fast: bool = False

    def __post_init__(self) -> None:
        if self.fp32 not in FP32_MODES or self.acc not in ("fp32", "fp16", "fp64", "int32"):
            raise InputError(f"no such numerics: fp32={self.fp32} acc={self.acc}")


IEEE = Numerics()
"""No reduced precision: IEEE fp32, fp32 accumulation."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A literal tensor: dtype name, sizes, strides and storage offset in elements."""

    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def operand(self) -> Operand:
        """Its class in the key."""
        return Operand(self.dtype, classify(self.sizes, self.strides, self.offset, self.dtype))


def default_numerics(dtype: str, tf32: bool = False) -> Numerics:
    """What torch does for `dtype` unless told otherwise: fp32 accumulation, reduced split-K sums for 16-bit floats."""
    acc = {"fp64": "fp64", "int8": "int32", "uint8": "int32"}.get(dtype, "fp32")
    return Numerics("tf32" if tf32 else "ieee", acc, reduced=dtype in ("bf16", "fp16"))


def dense_bias(kind: str, m: int, n: int, dtype: str) -> Bias | None:
    """The dense bias of `kind` for an [m, n] output, None for `none`. A `full` bias of a single row is `1d`, since a
    graph's [1, N] bias has that class."""
    if kind == "full" and m == 1:
        kind = "1d"
    if kind == "none":
        return None
    if kind not in BIAS_KINDS:
        raise InputError(f"unknown bias {kind!r}; {choices(kind, ('none', *BIAS_KINDS))}")
    rows, columns = {"1d": (1, n), "full": (m, n), "column": (m, 1)}[kind]
    return Bias(kind, dtype, contiguous(rows, columns, dtype).align)
