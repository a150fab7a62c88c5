"""Regression trees that JSON files hold, evaluated without other libraries."""

from __future__ import annotations

import math
import struct
from bisect import bisect_left
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import getitem
from typing import Any

from gemmdb.key.canonical import lazy

FORMAT = 1
MAX_NODES = 1 << 18
"""The most nodes of all trees together. More could not be evaluated at compile time."""
LARGEST = 1 << 31
"""The largest magnitude of any number in the file."""
MAX_REMEMBERED = 1024
"""The most keys whose leaves are remembered: a kilobyte or two each."""
WORD = 64
"""The most leaves of a tree. Each is a bit of the tree's word."""


@dataclass(frozen=True)
class Trees:
    """`base`: the start of every prediction. `leaves`: the leaf values of all trees in order, counted from 1.
    `questions`: for each feature its sorted thresholds and, for each number of exceeded thresholds, the leaves that can
    still be reached. `firsts`: the first leaf of every tree. `checks`: rows of features with the fit's own predictions.
    `remembered`: leaves that can be reached, by what they depend on.

    Trees are not walked. The leaves of each tree are the bits of a word, and all words form one integer. Each feature
    masks out the leaves that it rules out in all trees at once. The first remaining leaf of a tree is the one that a
    walk would reach (QuickScorer: Lucchese et al., SIGIR 2015). In Python this takes less than half the time of a walk.
    """

    base: float
    leaves: Sequence[Sequence[float]]
    questions: Sequence[tuple[Sequence[float], Sequence[int]]]
    firsts: int
    checks: Sequence[tuple[Sequence[float], float]] = ()
    remembered: dict[Hashable, int] = field(default_factory=dict, compare=False, repr=False)

    def log(self, values: Sequence[float]) -> float:
        """The prediction for these features."""
        return self.total(self.reached(self.every, values))

    @lazy
    def every(self) -> int:
        """All leaves."""
        return (1 << WORD * len(self.leaves)) - 1

    @lazy
    def words(self) -> struct.Struct:
        """The words of all trees."""
        return struct.Struct(f"<{len(self.leaves)}Q")

    def reached(self, left: int, values: Sequence[float], begin: int = 0) -> int:
        """The leaves of `left` that can still be reached, given `values` for the features from position `begin` on."""
        for value, (thresholds, masks) in zip(values, self.questions[begin:], strict=False):
            if exceeded := bisect_left(thresholds, value):  # Otherwise nothing is ruled out.
                left &= masks[exceeded]
        return left

    def fixed(self, key: Hashable, values: Callable[[], Sequence[float]], begin: int) -> int:
        """The leaves that can be reached, given `values` for the features from position `begin` on, which depend on
        `key` alone: those of the latest keys are remembered."""
        found = self.remembered.get(key)
        if found is None:
            if len(self.remembered) >= MAX_REMEMBERED:
                self.remembered.clear()
            found = self.remembered[key] = self.reached(self.every, values(), begin)
        return found

    def total(self, left: int) -> float:
        """The base plus, for each tree, the value of its first leaf in `left`."""
        # Each tree has at least one leaf left, so the subtraction never borrows from another tree's word.
        lowest = left ^ (left & (left - self.firsts))
        words = self.words.unpack(lowest.to_bytes(self.words.size, "little"))
        return sum(map(getitem, self.leaves, map(int.bit_length, words)), self.base)


def parse(data: Any, features: Sequence[str]) -> Trees:
    """The trees of a JSON document over these features. Raises ValueError with the reason if it is malformed.

    `cuts`: pairs of a feature's position and a threshold. `trees`: the nodes of each tree, children before parents and
    lower ones first. An even number is an inner node: twice the position of its cut. An odd number is a leaf: its value
    is half of the number, rounded down, times `unit`.
    """
    if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("features") != list(features):
        raise ValueError(f"not trees of format {FORMAT} over the {len(features)} features of this version")
    cuts = [_cut(one, len(features)) for one in _list(data, "cuts")]
    unit, codes = _number(data.get("unit")), _list(data, "trees")
    if sum(len(one) for one in codes if isinstance(one, list)) > MAX_NODES:
        raise ValueError(f"more than {MAX_NODES} nodes")
    masks = [0] * len(cuts)
    units = _Units(unit)
    leaves = [_leaves(one, units, masks, place) for place, one in enumerate(codes)]
    checks = tuple(_check(one, len(features)) for one in _list(data, "checks"))
    firsts = int.from_bytes((1).to_bytes(WORD // 8, "little") * len(codes), "little")
    return Trees(_number(data.get("base")), leaves, _questions(cuts, masks, len(codes), len(features)), firsts, checks)


class _Units(dict[int, float]):
    """The value of so many units. Equal leaves share one object: all values then stay in the CPU's cache."""

    def __init__(self, unit: float) -> None:
        self.unit = unit

    def __missing__(self, number: int) -> float:
        return self.setdefault(number, number * self.unit)


def _leaves(codes: Any, units: _Units, masks: list[int], place: int) -> tuple[float, ...]:
    """The leaves of the tree at `place`, counted from 1. Adds to `masks`, for each cut, the leaves that are ruled out
    if its threshold is exceeded."""
    if not isinstance(codes, list) or not set(map(type, codes)) <= {int} or max(map(abs, codes), default=0) > LARGEST:
        raise ValueError("a tree is a list of small integers")
    values: list[float] = []
    stack: list[tuple[int, int]] = []  # The first leaf of a node and its number of leaves.
    for code in codes:
        if code & 1:
            stack.append((len(values), 1))
            values.append(units[code >> 1])
        elif len(stack) < 2 or not 0 <= code < 2 * len(masks):
            raise ValueError(f"no such node: {code}")
        else:
            (_, more), (first, lower) = stack.pop(), stack.pop()
            masks[code >> 1] |= (1 << lower) - 1 << WORD * place + first
            stack.append((first, lower + more))
    if len(stack) != 1 or len(values) > WORD:
        raise ValueError(f"a tree with {len(stack)} roots and {len(values)} leaves")
    return math.nan, *values


def _questions(
    cuts: Sequence[tuple[int, float]], masks: Sequence[int], trees: int, features: int
) -> list[tuple[Sequence[float], Sequence[int]]]:
    found: list[tuple[Sequence[float], Sequence[int]]] = []
    of: list[list[tuple[float, int]]] = [[] for _ in range(features)]
    for (feature, threshold), mask in zip(cuts, masks, strict=True):
        of[feature].append((threshold, mask))
    for mine in map(sorted, of):
        left = [(1 << WORD * trees) - 1]
        for _, mask in mine:
            left.append(left[-1] & ~mask)
        found.append((tuple(threshold for threshold, _ in mine), tuple(left)))
    return found


def _cut(value: Any, features: int) -> tuple[int, float]:
    if not isinstance(value, list) or len(value) != 2 or type(value[0]) is not int:
        raise ValueError("a cut is a feature and a threshold")
    if not 0 <= value[0] < features:
        raise ValueError(f"no feature {value[0]}")
    return value[0], _number(value[1])


def _check(value: Any, features: int) -> tuple[tuple[float, ...], float]:
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], list):
        raise ValueError("a check is a row of features and a prediction")
    if len(value[0]) != features:
        raise ValueError("a check has one value for each feature")
    return tuple(map(_number, value[0])), _number(value[1])


def _list(data: Mapping[str, Any], name: str) -> list[Any]:
    found = data.get(name)
    if not isinstance(found, list):
        raise ValueError(f"{name} is a list")
    return found


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not -LARGEST <= value <= LARGEST:
        raise ValueError(f"not a number in range: {value!r:.40}")
    return float(value)
