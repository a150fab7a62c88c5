"""Draws problems from pools: in the order of a hash, in turns over sizes, without problems that are too expensive.

Nothing is random: the same pools give the same problems in the same order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from gemmdb.generators.shapes.architectures import Item
from gemmdb.generators.shapes.pools import each
from gemmdb.key.problem import Problem

MOST_US, MOST_BYTES = 2000.0, 3e9
"""Problems are left out if one call of ATen takes longer, or if their tensors are larger. Each costs a build as much as
dozens of others, and on such large problems cuBLAS is at its best."""
BYTES_PER_US = 4.0e6
FLOPS_PER_US = {
    "bf16": 700e6, "fp16": 700e6, "int8": 850e6, "fp32": 48e6, "tf32": 350e6, "fp8_e4m3": 1200e6, "fp8_e5m2": 1200e6,
}  # fmt: skip
"""What ATen roughly reaches on an H200, accurate enough for the rule above."""
TILED_FLOPS_PER_US = 30e6
"""The same for `_weight_int4pack_mm`: 29 TFLOP/s at 512 and at 2,048 rows."""


@dataclass(frozen=True)
class Stratum:
    """`wanted` problems out of a pool for one use; the whole pool if it is smaller. `turns`: the sizes over which the
    draw takes turns: M, so that no size is preferred, or N and K, so that no layer is left out."""

    wanted: int
    pool: Sequence[Item]
    turns: tuple[str, ...] = ("m",)


def draw(strata: Iterable[Stratum], taken: set[Problem]) -> list[list[Item]]:
    """The items drawn from each stratum, without problems that are `taken`; drawn problems are added to `taken`."""
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


def following(first: Sequence[Item], strata: Iterable[Stratum]) -> list[Item]:
    """The items of `first`, in which lists stand for several problems, then those drawn from the strata without
    repeating these, merged in proportion."""
    taken = {Problem.gemm(**one) for item in first for one in each({}, **item)}
    entries = [entry for found in draw(strata, taken) for entry in shares(found)]
    return [*first, *(item for _, item in sorted(entries, key=lambda entry: (entry[0], digest(entry[1]))))]


def spread(pool: Iterable[Item], turns: Sequence[str] = ("m",)) -> list[Item]:
    """The items in rounds, each with one item per value of the sizes `turns`, in the order of their hash."""
    groups: dict[tuple[int, ...], list[Item]] = {}
    for item in sorted(pool, key=digest):
        groups.setdefault(tuple(item[size] for size in turns), []).append(item)
    rounds = zip_longest(*groups.values())
    return [item for found in rounds for item in sorted((i for i in found if i), key=digest)]


def shares(found: Sequence[Item]) -> list[tuple[float, Item]]:
    """The items, each with the share of its stratum that comes before it, counting half of itself."""
    return [((rank + 0.5) / len(found), item) for rank, item in enumerate(found)]


def affordable(problem: Problem) -> bool:
    """Whether one call of ATen takes at most MOST_US, by a roofline, and its tensors MOST_BYTES."""
    return call_us(problem) <= MOST_US and problem.bytes <= MOST_BYTES


def call_us(problem: Problem) -> float:
    """Roughly the microseconds of one call of ATen. A mixed_mm first casts its weight, which is written and read
    again; a tiled int4 weight has an operator of its own, for few rows."""
    if problem.int4 is not None and problem.int4.inner:
        return max(problem.bytes / BYTES_PER_US, problem.flops / TILED_FLOPS_PER_US)
    cast = 5 * problem.n * problem.k if problem.spec.dequantises else 0
    kind = "tf32" if problem.numerics.fp32 == "tf32" else problem.a.dtype
    return max((problem.bytes + cast) / BYTES_PER_US, problem.flops / FLOPS_PER_US[kind])


def digest(item: Item) -> bytes:
    """The hash by which items are ordered, the same on every machine."""
    return hashlib.sha256(json.dumps(item, sort_keys=True).encode()).digest()
