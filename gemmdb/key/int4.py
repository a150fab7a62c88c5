"""The weight of four bits of a mixed_mm: which weights share a scale, what they count from, and how they lie in memory.

A weight is a number from 0 to 15, two to a byte. GROUP neighbours along K of one column share a scale, of the dtype of
the activation. Without zero points, the weight is (number - 8) * scale.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmdb.errors import InputError, choices
from gemmdb.key.layout import Layout
from gemmdb.key.operands import HALF_BYTE, Operand
from gemmdb.rejected import Rejected

INT4 = HALF_BYTE
SIZES = (32, 64, 128, 256)
TILED = {"tinygemm2": 2, "tinygemm4": 4, "tinygemm8": 8}
"""The layouts of `aten._weight_int4pack_mm`, [N / 8, K / (16 * inner), 32, inner / 2] int32, with their number of inner
tiles of K. Scales and zero points are [K / group, N, 2]: the weight is (number - 8) * scale + zero."""
BYTES = ("low-first", "high-first")
"""[N, K / 2] bytes, each with two neighbours along K: the first in the low or in the high four bits. Scales and zero
points are [N, K / group]: the weight is (number - zero) * scale."""
PACKINGS = (*TILED, *BYTES)
WEIGHT = Operand(INT4, Layout("col", 16))
"""An int4 weight in the key. It is dense: 32 neighbours along K, the smallest group, are 16 bytes."""
ZERO_NUMBER = 8
"""The number that stands for a weight of zero without zero points."""
INTEGERS = ("uint8", "int8")
"""Dtypes of zero points beside that of the activation."""


@dataclass(frozen=True, slots=True)
class Int4Format:
    """How an int4 weight is scaled and packed.

    `size`: how many neighbours along K share a scale. `zeros`: the dtype of the zero points, `none` without any.
    `packing`: one of PACKINGS. Raises InputError for values outside these."""

    size: int
    zeros: str
    packing: str

    def __post_init__(self) -> None:
        if type(self.size) is not int or self.size not in SIZES:
            raise InputError(f"groups have {', '.join(map(str, SIZES))} weights, got {self.size!r}")
        if self.zeros not in ("none", "bf16", "fp16", *INTEGERS):
            raise InputError(
                f"no such zero points: {self.zeros!r}; {choices(self.zeros, ('none', 'bf16', 'fp16', *INTEGERS))}"
            )
        if self.packing not in PACKINGS:
            raise InputError(f"no such packing: {self.packing!r}; {choices(self.packing, PACKINGS)}")

    @property
    def text(self) -> str:
        """`group=128 zeros=bf16 packing=tinygemm8`."""
        return f"group={self.size} zeros={self.zeros} packing={self.packing}"

    @property
    def inner(self) -> int:
        """The tiles of 16 along K that a word's lane has in a tiled weight; 0 for one of bytes."""
        return TILED.get(self.packing, 0)

    def rejection(self, n: int, k: int) -> Rejected | None:
        """Why no weight [n, k] is packed like this, None when one is. The key allows any size."""
        step, columns = max(self.size, 16 * self.inner), 8 if self.inner else 1
        if k % step or n % columns:
            return Rejected(f"{self.text} wants K in steps of {step}{' and N in steps of 8' if self.inner else ''}")
        return None

    def bytes(self, n: int, k: int, item: int) -> int:
        """Bytes of a weight [n, k] with its scales, of `item` bytes each, and zero points."""
        zero = {"none": 0, "uint8": 1, "int8": 1}.get(self.zeros, item)
        return n * k // 2 + n * k // self.size * (item + zero)


def default(dtype: str, size: int | None, zeros: str | None, packing: str | None) -> Int4Format:
    """The format of a weight with an activation of `dtype`, where None stands for a default: 128 weights, packed for
    `_weight_int4pack_mm`, or in bytes if the activation is not bf16; the zero points that the packing always has."""
    packing = packing or (PACKINGS[2] if dtype == "bf16" else BYTES[0])
    return Int4Format(size or 128, zeros or (dtype if packing in TILED else "none"), packing)
