"""What a node on the way of a packed weight computes: which four bits of which memory its elements are, and what is
subtracted from them and multiplied with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from gemmdb.inductor.match.fx import value
from gemmdb.inductor.match.positions import Places, merged
from gemmdb.key.int4 import EXPONENT_BIAS

INTEGER_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
EXACT = 256
"""The integers up to here are exact in bf16."""


@dataclass(frozen=True)
class Known:
    """Integers that the graph itself makes: shifts and orders."""

    places: Places


@dataclass(frozen=True)
class Stored:
    """Elements of the contiguous tensor `source`. `places`: in four bits if they are integers, else in elements.
    `item`: four bits of an integer, as the node sees it; 0 of a float. `power`: each stands for 2 to the power of
    the byte less 127."""

    source: Any
    places: Places
    item: int
    power: bool = False


@dataclass(frozen=True)
class Number:
    """Four or eight `bits` of the integers in `source`, plus `plus`. `masked`: other bits are 0; without it, the low
    four bits of an element are the number. `wrapped`: `plus` is added modulo 16. `room`: how many times four bits an
    element has from the number up, at least. `signed`: whether the number has a sign, as an int8 has. `fp4`: whether it
    stands for the value of E2M1 with that number."""

    source: Any
    places: Places
    masked: bool
    plus: int = 0
    wrapped: bool = False
    bits: int = 4
    room: int = 1
    signed: bool = False
    fp4: bool = False

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the largest value that it may have."""
        least = self.plus - (1 << self.bits - 1 if self.signed else 0)
        return least, least + (1 << self.bits) - 1


@dataclass(frozen=True)
class Weight:
    """Numbers minus zero points, times scales: each with as many places as the weight. `zeros`, `scale`: None before
    they are met."""

    number: Number
    zeros: Number | Stored | None = None
    scale: Stored | None = None


Seen = Known | Stored | Number | Weight


def moved(seen: Seen, move: Callable[[Places], Places]) -> Seen:
    """Return the same elements elsewhere in a tensor."""
    if isinstance(seen, Weight):
        zeros = None if seen.zeros is None else replace(seen.zeros, places=move(seen.zeros.places))
        scale = None if seen.scale is None else replace(seen.scale, places=move(seen.scale.places))
        return Weight(replace(seen.number, places=move(seen.number.places)), zeros, scale)
    return replace(seen, places=move(seen.places))


def numbers_of(seen: Seen) -> Seen:
    """Return whole bytes of memory as numbers of eight bits, anything else as it is."""
    if not isinstance(seen, Stored) or seen.item != 2 or seen.power:
        return seen
    dtype = value(seen.source).dtype
    if dtype not in (torch.int8, torch.uint8):
        return seen
    return Number(seen.source, seen.places, masked=True, bits=8, signed=dtype is torch.int8)


def sizes_of(seen: Seen) -> tuple[int, ...]:
    """Return the sizes of the tensor whose elements these are."""
    return seen.number.places.shape if isinstance(seen, Weight) else seen.places.shape


def fits(number: Number, dtype: Any) -> bool:
    """Whether a dtype has all values that a number may have."""
    least, most = number.limits
    if dtype.is_floating_point:
        return least >= -EXACT and most <= EXACT
    limits = torch.iinfo(dtype)
    return bool(limits.min <= least and most <= limits.max)


def masked_byte(seen: Seen, dtype: Any) -> Seen | None:
    """The low eight bits of each element. An int8 would keep its sign."""
    if dtype not in INTEGER_DTYPES or dtype is torch.int8:
        return None
    if isinstance(seen, Stored) and seen.item >= 2 and not seen.power:
        return Number(seen.source, seen.places, masked=True, bits=8)
    if not isinstance(seen, Number) or seen.masked or seen.plus or seen.room < 2:
        return None
    return replace(seen, masked=True, bits=8)


def side_by_side(parts: list[Seen], dim: int, nested: bool = False) -> Seen | None:
    """Numbers of the same memory, one tensor after the other along `dim`; `nested`: one element of each in turn."""
    seen = [one for one in parts if isinstance(one, Number)]
    alike = {replace(one, places=replace(one.places, first=0), room=1) for one in seen}
    if len(seen) < len(parts) or len(alike) != 1:
        return None
    (found,), listed = alike, Places.listed([one.places.first for one in seen])
    dims = list(found.places.dims)
    dims[dim] = merged((*dims[dim], *listed.dims[0]) if nested else (*listed.dims[0], *dims[dim]))
    return replace(found, places=Places(listed.first, tuple(dims)), room=min(one.room for one in seen))


def same_kind(number: Number, zeros: Seen) -> bool:
    """Whether zero points are numbers as those of a weight are, or floats."""
    found = numbers_of(zeros)
    if isinstance(found, Number):
        return (found.bits, found.signed) == (number.bits, number.signed)
    return isinstance(found, Stored) and not found.item


def fp4_of(seen: Seen) -> Seen | None:
    """Return the values of E2M1 that numbers of four bits stand for."""
    if not isinstance(seen, Number) or seen.fp4 or seen.wrapped or not seen.masked:
        return None
    return replace(seen, fp4=True) if (seen.bits, seen.plus) == (4, 0) else None


def power_of(seen: Seen) -> Stored | None:
    """Return two to the power of numbers, if these are the bytes of a memory less 127."""
    if not isinstance(seen, Number) or seen.signed or (seen.bits, seen.plus) != (8, -EXPONENT_BIAS):
        return None
    return Stored(seen.source, seen.places, 2, power=True)


def scaled(weight: Weight, scale: Stored, shape: Sequence[int]) -> Weight:
    """Return a weight of `shape` times its scale."""
    found = moved(weight, lambda places: places.expanded(shape))
    assert isinstance(found, Weight)
    return replace(found, scale=replace(scale, places=scale.places.expanded(shape)))
