"""The weight of a mixed_mm that is scaled by groups: which weights share a scale, what they count from, and how they
lie in memory.

A weight is a number of four bits, from 0 to 15, or of eight. GROUP neighbours along K of one column share a scale, of
the dtype of the activation. Without zero points, the weight is (number - 8) * scale, of eight bits (number - 128) *
scale if the numbers are unsigned, and number * scale if they are not. MXFP4 is described at its packing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gemmdb.errors import InputError, choices
from gemmdb.key.layout import ITEM_SIZES, Layout
from gemmdb.key.operands import HALF_BYTES, Operand
from gemmdb.rejected import Rejected

INT4, FP4 = HALF_BYTES
SIZES = (32, 64, 128, 256)
TILED = {"tinygemm2": 2, "tinygemm4": 4, "tinygemm8": 8}
"""The layouts of `aten._weight_int4pack_mm`, [N / 8, K / (16 * inner), 32, inner / 2] int32, with their number of inner
tiles of K. Scales and zero points are [K / group, N, 2]: the weight is (number - 8) * scale + zero."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How a program packs the numbers of a weight that it unpacks itself: (number - zero point) * scale.

    `packed`: the size, `n` or `k`, whose neighbours share a word. `order`: where they lie in their word, counted in
    four bits from the low end. `rows`: the size that is the outer one in memory, of the words and of the scales.
    `zeros`: the order of zero points that are int4 too, and share words along N; empty if each has a number of its own.
    `plus`: what is added to a stored int4 zero point, modulo 16. `bits`: of a number. `dtype`: of its numbers, empty if
    they may be int8 or uint8. `scale`: the dtype of its scales, empty for that of the activation. `added`: its numbers
    have a sign, and its zero points are added to number * scale; scales and zero points then are [K / group, N]."""

    packed: str
    order: tuple[int, ...]
    rows: str
    zeros: tuple[int, ...] = ()
    plus: int = 0
    bits: int = 4
    dtype: str = INT4
    scale: str = ""
    added: bool = False

    def sizes(self, n: int, k: int, item: int) -> tuple[int, int]:
        """The sizes of the packed weight [n, k], of elements of `item` bytes each."""
        many = 8 * item // self.bits
        n, k = (n // many, k) if self.packed == "n" else (n, k // many)
        return (n, k) if self.rows == "n" else (k, n)

    def groups(self, n: int, k: int, size: int) -> tuple[int, int]:
        """The sizes of its scales, and of zero points that have a number each, for groups of `size`."""
        return (n, k // size) if self.rows == "n" and not self.added else (k // size, n)

    @property
    def in_word(self) -> int:
        """How many numbers a word of 32 bits has."""
        return 32 // self.bits

    @property
    def zero_order(self) -> tuple[int, ...]:
        """The order of zero points that share words along N; empty if the packing has none of these."""
        words = self.order[0] == 0 and self.rows == "n" and self.dtype != FP4 and not self.added
        return self.zeros or (tuple(range(self.in_word)) if words else ())


_EIGHT = (0, 1, 2, 3, 4, 5, 6, 7)
_AWQ = (0, 4, 1, 5, 2, 6, 3, 7)
PACKED: Mapping[str, Packing] = {
    "low-first": Packing("k", (0, 1), "n"),
    "high-first": Packing("k", (1, 0), "n"),
    "gptq": Packing("k", _EIGHT, "k", _EIGHT, plus=1),
    "gptq2": Packing("k", _EIGHT, "k", _EIGHT),
    "awq": Packing("n", _AWQ, "k", _AWQ),
    "byte": Packing("k", (0,), "n", bits=8, dtype=""),
    "byte-fp32": Packing("k", (0,), "n", bits=8, dtype="", scale="fp32"),
    "plain": Packing("k", (0, 1), "n", added=True),
    "mxfp4": Packing("k", (0, 1), "n", dtype=FP4, scale="uint8"),
}
"""The packings that programs unpack. Those of two numbers in a byte have [N, K / 2] uint8, or four bytes in a word [N,
K / 8] int32, and `byte` has a number in each, [N, K] int8 or uint8, or four uint8 in a word [N, K / 4] int32. Their
scales and zero points are [N, K / group], those of compressed-tensors share words along N. `byte-fp32` is `byte` with
scales of fp32, which multiply in fp32. `mxfp4` lies like `low-first`: a number is the index of a value of E2M1, and a
scale is a byte, the exponent of a power of two plus 127. The others have int32 words, `gptq` and `gptq2` [K / 8, N] and
`awq` [K, N / 8], with scales [K / group, N] and int4 zero points [K / group, N / 8]. The first format of GPTQ stores
zero points less 1. `plain`, torchao's default, lies like `low-first`: a number is in two's complement, and the weight
is number * scale + zero, with [K / group, N] each."""
WORDS = tuple(name for name, packing in PACKED.items() if packing.rows == "k")
"""The packings whose memory runs along N, in words of 32 bits."""
BYTE, LOW_FIRST, MXFP4, PLAIN = "byte", "low-first", "mxfp4", "plain"
ADDED = (*TILED, PLAIN)
"""The packings whose zero points, of the activation's dtype, are added to the scaled weight."""
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The values of `mxfp4`, by their number."""
EXPONENT_BIAS, MX_SIZE = 127, 32
"""What its scales have more than the exponent, and how many weights share one."""
IN_WORDS = "uint8x4"
"""Zero points of `byte` as compressed-tensors stores them: [N / 4, K / group] int32, four uint8 along N in a word.
Those of `low-first` are [N / 8, K / group], of INT4."""
PACKINGS = (*TILED, *PACKED)
_DENSE = Layout("col", 16)
"""32 neighbours along K, the smallest group, are at least 16 bytes."""
WEIGHTS = {dtype: Operand(dtype, _DENSE) for dtype in (INT4, FP4, "int8", "uint8")}
"""A weight that is scaled by groups, in the key, by the dtype of its numbers."""
WEIGHT = WEIGHTS[INT4]
ZERO_NUMBER = 8
"""The number of four bits that stands for a weight of zero without zero points."""
ZERO_BYTES = {"int8": 0, "uint8": 128}
"""The same of eight bits, by the dtype of the numbers."""
INTEGERS = ("uint8", "int8", INT4, IN_WORDS)
"""Dtypes of zero points beside that of the activation."""


@dataclass(frozen=True, slots=True)
class Int4Format:
    """How a weight is scaled by groups and packed.

    `size`: how many neighbours along K share a scale. `zeros`: the dtype of the zero points, `none` without any.
    `packing`: one of PACKINGS. Raises InputError for values outside these, and for zero points that the packing never
    has."""

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
        if (self.zeros == INT4) != (self.packing in WORDS) and (self.zeros, self.packing) != (INT4, LOW_FIRST):
            raise InputError(f"{', '.join(WORDS)} have int4 zero points, {LOW_FIRST} may, and no other packing has")
        if self.packing == MXFP4 and (self.size, self.zeros) != (MX_SIZE, "none"):
            raise InputError(f"{MXFP4} has groups of {MX_SIZE} without zero points")
        if self.packing == PLAIN and self.zeros not in ("bf16", "fp16"):
            raise InputError(f"{PLAIN} has zero points of the activation's dtype")
        if self.zeros == IN_WORDS and self.bits != 8:
            raise InputError(f"only bytes have zero points of {IN_WORDS}")

    @property
    def text(self) -> str:
        """`group=128 zeros=bf16 packing=tinygemm8`."""
        return f"group={self.size} zeros={self.zeros} packing={self.packing}"

    @property
    def inner(self) -> int:
        """The tiles of 16 along K that a word's lane has in a tiled weight; 0 for others."""
        return TILED.get(self.packing, 0)

    @property
    def bits(self) -> int:
        """The bits of a number: 4 or 8."""
        return PACKED[self.packing].bits if self.packing in PACKED else 4

    @property
    def scale(self) -> str:
        """The dtype of its scales, empty for that of the activation."""
        return PACKED[self.packing].scale if self.packing in PACKED else ""

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes in the key that its numbers may have."""
        own = PACKED[self.packing].dtype if self.packing in PACKED else INT4
        return (own,) if own else ("int8", "uint8")

    @property
    def zeros_in_words(self) -> bool:
        """Whether zero points share words along N, of a weight whose memory runs along K."""
        return self.zeros in (INT4, IN_WORDS) and not self.along_n

    def same_layout(self, other: Int4Format) -> bool:
        """Whether the numbers of both are packed along the same size, with as many bits and the same dtype; their order
        within a word may differ."""
        one, two = PACKED.get(self.packing), PACKED.get(other.packing)
        if one is None or two is None:
            return one is two
        return (one.packed, one.rows, one.bits, one.dtype) == (two.packed, two.rows, two.bits, two.dtype)

    @property
    def along_n(self) -> bool:
        """Whether memory runs along N."""
        return self.packing in WORDS

    def rejection(self, n: int, k: int) -> Rejected | None:
        """Why no weight [n, k] is packed like this, None when one is. The key allows any size."""
        step = max(self.size, 16 * self.inner)
        columns = 8 if self.inner or self.along_n else 32 // self.bits if self.zeros_in_words else 1
        if k % step or n % columns:
            more = f" and N in steps of {columns}" if columns > 1 else ""
            return Rejected(f"{self.text} wants K in steps of {step}{more}")
        return None

    def bytes(self, n: int, k: int, item: int) -> int:
        """Bytes of a weight [n, k] with its scales, of `item` bytes each, and zero points."""
        groups = n * k // self.size
        scale = ITEM_SIZES.get(self.scale, item)
        sizes = {"none": 0, "uint8": groups, "int8": groups, IN_WORDS: groups, INT4: groups // 2}
        return n * k * self.bits // 8 + groups * scale + sizes.get(self.zeros, groups * item)


def default(dtype: str, size: int | None, zeros: str | None, packing: str | None) -> Int4Format:
    """The format of a weight with an activation of `dtype`, where None stands for a default: 128 weights, packed for
    `_weight_int4pack_mm`, or in bytes if the activation is not bf16; the zero points that the packing always has."""
    packing = packing or ("tinygemm8" if dtype == "bf16" else "low-first")
    always = dtype if packing in ADDED else INT4 if packing in WORDS else "none"
    return Int4Format(size or (MX_SIZE if packing == MXFP4 else 128), zeros or always, packing)
