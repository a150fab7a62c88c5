"""What a node on the way of a packed weight computes: which four bits of which memory its elements are, and what is
subtracted from them and multiplied with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gemmdb.inductor.match.positions import Places


@dataclass(frozen=True)
class Known:
    """Integers that the graph itself makes: shifts and orders."""

    places: Places


@dataclass(frozen=True)
class Stored:
    """Elements of the contiguous tensor `source`. `places`: in four bits if they are integers, else in elements.
    `item`: four bits of an integer, as the node sees it; 0 of a float."""

    source: Any
    places: Places
    item: int


@dataclass(frozen=True)
class Number:
    """Four bits of the integers in `source`, plus `plus`. `masked`: other bits are 0; without it, the low four bits of
    an element are the number. `wrapped`: `plus` is added modulo 16."""

    source: Any
    places: Places
    masked: bool
    plus: int = 0
    wrapped: bool = False


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


def sizes_of(seen: Seen) -> tuple[int, ...]:
    """Return the sizes of the tensor whose elements these are."""
    return seen.number.places.shape if isinstance(seen, Weight) else seen.places.shape
