"""Where the elements of a view lie: the place of each in one memory, as a sum over its dimensions.

A matcher follows a tensor through views with these, and compares the places at the end with those of a known layout. No
element is looked at, so equal places are a proof.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

Part = tuple[int, int]
"""`size` numbers, each `step` after the one before."""
IN_ORDER = 1 << 48
"""A factor of the steps of rows that are gathered in an order which is no sum. No memory has as many elements."""
Dim = tuple[Part, ...]
"""The places along a dimension, relative to its first: the sums of one number of each part, the last part fastest."""


class Unknown(Exception):
    """The places are no such sums."""


@dataclass(frozen=True, slots=True)
class Places:
    """The place of each element of a tensor: `first`, plus the sum of those of its `dims`."""

    first: int
    dims: tuple[Dim, ...]

    @classmethod
    def dense(cls, shape: Sequence[int], step: int = 1) -> Places:
        """The places of a contiguous tensor of elements that are `step` apart."""
        dims = []
        for size in reversed(shape):
            dims.append(merged([(size, step)]))
            step *= size
        return cls(0, tuple(reversed(dims)))

    @classmethod
    def listed(cls, numbers: Sequence[int]) -> Places:
        """The places `numbers` along one dimension. Raises Unknown."""
        return cls(numbers[0], (_factors(tuple(number - numbers[0] for number in numbers)),)) if numbers else _unknown()

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""
        return tuple(map(_size, self.dims))

    @property
    def last(self) -> int:
        """The largest place."""
        return self.first + sum((size - 1) * max(step, 0) for dim in self.dims for size, step in dim)

    def scaled(self, by: int) -> Places:
        """Each place times `by`."""
        return Places(self.first * by, tuple(tuple((size, step * by) for size, step in dim) for dim in self.dims))

    def divided(self, by: int) -> Places:
        """Each place divided by `by`. Raises Unknown if one has a remainder."""
        if any(number % by for number in (self.first, *(step for dim in self.dims for _, step in dim))):
            raise Unknown
        return Places(self.first // by, tuple(tuple((n, step // by) for n, step in dim) for dim in self.dims))

    def plus(self, other: Places) -> Places:
        """The sums of the places of two tensors that are broadcast. Raises Unknown where both change along one
        dimension."""
        shape = broadcast(self.shape, other.shape)
        pairs = zip(self.expanded(shape).dims, other.expanded(shape).dims, strict=True)
        dims = tuple(b if _still(a) else a if _still(b) else _unknown() for a, b in pairs)
        return Places(self.first + other.first, dims)

    def expanded(self, shape: Sequence[int]) -> Places:
        """The places of a tensor that is broadcast to `shape`; -1 keeps a size. Raises Unknown."""
        extra = len(shape) - len(self.dims)
        if extra < 0:
            raise Unknown
        dims = (*((),) * extra, *self.dims)
        return Places(self.first, tuple(map(_repeated, dims, shape)))

    def reshaped(self, shape: Sequence[int]) -> Places:
        """The places of the same elements in another shape. Raises Unknown."""
        if math.prod(shape) != math.prod(self.shape):
            raise Unknown
        return Places(self.first, _reshaped(self.dims, tuple(shape)))

    def permuted(self, order: Sequence[int]) -> Places:
        """The places with the dimensions in another order."""
        return Places(self.first, tuple(self.dims[one] for one in order))

    def chosen(self, dim: int, places: Places) -> Places:
        """The places of the elements that `places`, of one dimension, numbers along `dim`. Raises Unknown."""
        (wanted,), along = places.dims, self.dims[dim]
        if len(along) > 1 or places.first < 0 or places.last >= _size(along) or any(s < 0 for _, s in wanted):
            raise Unknown
        step = along[0][1] if along else 0
        found = merged([(size, by * step) for size, by in wanted])
        return Places(self.first + places.first * step, self._with(dim, found).dims)

    def in_order(self, dim: int, many: int, size: int) -> Places:
        """The places of `many` rows that are gathered from `size` along `dim` in an order which is no sum. Raises
        Unknown."""
        along = self.dims[dim]
        if len(along) != 1 or along[0][0] != size:
            raise Unknown
        return self._with(dim, ((many, along[0][1] * IN_ORDER),))

    def in_groups(self, dim: int, size: int) -> Places:
        """The places of rows gathered by `in_order` from `size`, sorted. Raises Unknown for other rows."""
        along = self.dims[dim]
        if len(along) != 1 or along[0][1] < IN_ORDER or along[0][1] % IN_ORDER:
            raise Unknown
        many, step = along[0]
        return self._with(dim, merged(((size, step // IN_ORDER), (many // size, 0))))

    def _with(self, dim: int, places: Dim) -> Places:
        return Places(self.first, (*self.dims[:dim], places, *self.dims[dim + 1 :]))


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape to which tensors of these are broadcast. Raises Unknown."""
    rank = max(map(len, shapes))
    columns = zip(*((1,) * (rank - len(shape)) + tuple(shape) for shape in shapes), strict=True)
    return tuple(_common(sizes) for sizes in columns)


def merged(parts: Sequence[Part]) -> Dim:
    """The same places with as few parts as possible."""
    found: list[Part] = []
    for size, step in parts:
        if size == 1:
            continue
        if found and found[-1][1] == step * size:
            found[-1] = (found[-1][0] * size, step)
        else:
            found.append((size, step))
    return tuple(found)


def _common(sizes: Sequence[int]) -> int:
    found = {size for size in sizes if size != 1} or {1}
    return found.pop() if len(found) == 1 else _unknown()


def _repeated(dim: Dim, size: int) -> Dim:
    if size in (-1, _size(dim)):
        return dim
    return ((size, 0),) if not dim else _unknown()


@functools.lru_cache(maxsize=1024)
def _reshaped(dims: tuple[Dim, ...], shape: tuple[int, ...]) -> tuple[Dim, ...]:
    parts = list(merged([part for dim in dims for part in dim]))
    found = []
    for size in reversed(shape):
        taken: list[Part] = []
        while size > 1:
            many, step = parts.pop()
            if size % many == 0:
                taken.append((many, step))
                size //= many
            elif many % size == 0:
                taken.append((size, step))
                parts.append((many // size, step * size))
                size = 1
            else:
                raise Unknown
        found.append(merged(taken[::-1]))
    return tuple(reversed(found))


@functools.lru_cache(maxsize=256)
def _factors(numbers: tuple[int, ...]) -> Dim:
    """The parts of a list that begins with 0."""
    parts: list[Part] = []
    while len(numbers) > 1:
        step = numbers[1]
        longest = next((place for place, number in enumerate(numbers) if number != place * step), len(numbers))
        run = next((size for size in range(longest, 1, -1) if _repeats(numbers, size, step)), None)
        if run is None:
            raise Unknown
        parts.append((run, step))
        numbers = numbers[::run]
    return merged(parts[::-1])


def _repeats(numbers: Sequence[int], run: int, step: int) -> bool:
    """Whether the numbers are runs of `run`, each number in them `step` after the one before."""
    return len(numbers) % run == 0 and all(
        number == numbers[place - place % run] + place % run * step for place, number in enumerate(numbers)
    )


def _size(dim: Dim) -> int:
    return math.prod(size for size, _ in dim)


def _still(dim: Dim) -> bool:
    return all(step == 0 for _, step in dim)


def _unknown() -> NoReturn:
    raise Unknown
