"""Rows of a weight whose groups do not follow each other: `desc_act` of GPTQ, whose `g_idx` is the group of each row.

A program gathers scales and zero points by `g_idx`. With freezing the compile knows it: the rows of the packed weight
are sorted by their groups once, and the columns of the activation at each call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gemmdb.inductor.match.positions import Places
from gemmdb.inductor.match.unpacked import Stored, Weight


@dataclass(frozen=True)
class GroupOrder:
    """The group of each row."""

    groups: tuple[int, ...]

    @classmethod
    def of(cls, numbers: Sequence[int]) -> GroupOrder | None:
        """Return the order that a program gathers by; None for sorted rows, and unless all groups have equally many,
        more than one."""
        counts = Counter(numbers)
        equal = sorted(counts) == list(range(len(counts))) and len(set(counts.values())) == 1
        several = len(counts) < len(numbers) and sorted(numbers) != list(numbers)
        return cls(tuple(numbers)) if equal and several else None

    @property
    def rows(self) -> list[int]:
        """The rows sorted by their groups."""
        return sorted(range(len(self.groups)), key=self.groups.__getitem__)

    def gathered(self, places: Places, dim: int) -> Places:
        """Return the places of rows that are gathered along `dim` by their groups. Raises Unknown."""
        return places.in_order(dim, len(self.groups), 1 + max(self.groups))

    def sorted(self, weight: Weight) -> Weight:
        """Return the weight [K, N] with its rows sorted. Raises Unknown if a scale or zero point is not gathered."""
        count = 1 + max(self.groups)
        scale, zeros = (
            None if one is None else replace(one, places=one.places.in_groups(0, count))
            for one in (weight.scale, weight.zeros)
        )
        assert scale is None or isinstance(scale, Stored)
        return Weight(weight.number, zeros, scale)
