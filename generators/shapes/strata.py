"""How problems are drawn: from a pool in the order of a hash, with turns, and without what costs a build too much.

Nothing is random: the same pools give the same problems in the same order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from gemmdb.generators.shapes.architectures import Item
from gemmdb.key.problem import Problem

MOST_US, MOST_BYTES = 2000.0, 3e9
"""Left out is what one call of ATen takes longer for, or whose operands and output are larger: each costs as much of a
build as dozens of others, and where so much work is in one call, cuBLAS is at its best."""
BYTES_PER_US = 4.0e6
FLOPS_PER_US = {"bf16": 700e6, "fp16": 700e6, "int8": 850e6, "fp32": 48e6, "tf32": 350e6}
"""What ATen reaches on an H200, roughly; enough for the rule above."""


@dataclass(frozen=True)
class Stratum:
    """`wanted` problems out of a pool that stands for one use; all of it when there are no more. The `turns` are the
    sizes that the draw goes round: M, so that none is preferred, or N and K, so that no layer is left out."""

    wanted: int
    pool: Sequence[Item]
    turns: tuple[str, ...] = ("m",)


def draw(strata: Iterable[Stratum], taken: set[Problem]) -> list[list[Item]]:
    """What each stratum gives in turn, without what is `taken`, which grows by what is given."""
    chosen: list[list[Item]] = []
    for stratum in strata:
        found: list[Item] = []
        for item in spread(stratum.pool, stratum.turns):
            if len(found) == stratum.wanted:
                break
            problem = Problem.gemm(**item)
            if problem not in taken and affordable(problem):
                taken.add(problem)
                found.append(item)
        chosen.append(found)
    return chosen


def spread(pool: Iterable[Item], turns: Sequence[str] = ("m",)) -> list[Item]:
    """The items in rounds, one of each value of the sizes `turns` in a round, in the order of their hash."""
    groups: dict[tuple[int, ...], list[Item]] = {}
    for item in sorted(pool, key=digest):
        groups.setdefault(tuple(item[size] for size in turns), []).append(item)
    rounds = zip_longest(*groups.values())
    return [item for found in rounds for item in sorted((i for i in found if i), key=digest)]


def shares(found: Sequence[Item]) -> list[tuple[float, Item]]:
    """The items, each with the share of its stratum that comes before it; half of itself counts."""
    return [((rank + 0.5) / len(found), item) for rank, item in enumerate(found)]


def affordable(problem: Problem) -> bool:
    """Whether one call of ATen takes at most MOST_US, by a roofline, and its tensors MOST_BYTES."""
    return call_us(problem) <= MOST_US and problem.bytes <= MOST_BYTES


def call_us(problem: Problem) -> float:
    """About how long one call of ATen takes. A mixed_mm casts its weight first, which is written and read again."""
    cast = 5 * problem.n * problem.k if problem.spec.dequantises else 0
    kind = "tf32" if problem.numerics.fp32 == "tf32" else problem.a.dtype
    return max((problem.bytes + cast) / BYTES_PER_US, problem.flops / FLOPS_PER_US[kind])


def digest(item: Item) -> bytes:
    """The hash by which items are ordered, the same on every machine."""
    return hashlib.sha256(json.dumps(item, sort_keys=True).encode()).digest()
