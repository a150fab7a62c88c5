"""Finds the problems of a table that are nearest to a problem, by an index on family and sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

from gemmdb.key.problem import Problem
from gemmdb.key.rules import LARGEST_SIZE

STATE = "SELECT value FROM meta WHERE name = 'rows_digest'"
"""The query for the digest that changes with every row written to a file."""

Statement = tuple[str, list[Any]]
"""A query and its arguments."""


LOG_ROWS = 4.0
"""log2 of the 16 rows of the smallest tile. Fewer rows cost about as much."""


class Metric(NamedTuple):
    """How far two problems are apart: Euclidean over the base-2 logarithms of their sizes. `rows`: the weight of M;
    `tiles`: that of M again, where the smallest tile has fewer rows."""

    rows: float = 1.0
    tiles: float = 0.0

    def apart(self, one: Problem, other: Problem) -> float:
        """The distance in doublings; to the last bit that of `Family.nearest`, so a problem that several tables hold is
        equally far away in all of them."""
        (m, n, k), (a, b, c) = one.doublings, other.doublings
        tiles = max(a, LOG_ROWS) - max(m, LOG_ROWS)
        along_m = self.rows**2 * (a - m) * (a - m) + self.tiles**2 * tiles * tiles
        return math.sqrt(along_m + ((b - n) * (b - n) + (c - k) * (c - k)))


PLAIN = Metric()
_Member = tuple[float, float, int, int]
"""log2 of M, the same of at least LOG_ROWS, M, and the key."""


class _Pair(NamedTuple):
    """The members of a family with one N and K, and the base-2 logarithms of these."""

    log_n: float
    log_k: float
    n: int
    k: int
    members: list[_Member]


CROWD = 2_000
"""A family with so many problems is searched in boxes around the problem that grow until they hold enough."""
RATIOS = (1.02, 1.1, 1.3, 2.0, 4.0)
"""Half the sides of these boxes, as ratios of sizes."""
_Around = tuple[float, list[_Member]]
_SHAPES, _ENTRIES = 256, 200_000
"""The most N and K of a family whose surroundings are remembered, and the most pairs in all of these."""


@dataclass(frozen=True, slots=True)
class Family:
    """The problems of a family in a file that does not change. `sizes`: M, N and K in the index, by key. `known`: the
    problems that were read, by key; None for a key that names a problem of another family, as in a hostile file.
    `around`: what `_around` found last."""

    pairs: Sequence[_Pair]
    sizes: Mapping[int, tuple[int, int, int]]
    known: dict[int, Problem | None] = field(default_factory=dict)
    around: dict[tuple[int, int, tuple[int, int, int, int]], list[_Around]] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Sequence[tuple[Any, ...]]) -> Family:
        """The family of the `rows` that a `statement` without bounds finds. Raises ValueError if a key comes twice."""
        pairs: dict[tuple[int, int], _Pair] = {}
        sizes = {key: (m, n, k) for key, m, n, k in rows}
        if len(sizes) < len(rows):
            raise ValueError("the index lists a problem twice")
        log = math.log2
        for key, m, n, k in rows:
            pair = pairs.get((n, k))
            if pair is None:
                pair = pairs[n, k] = _Pair(log(n or 1), log(k or 1), n, k, [])
            height = log(m or 1)
            pair.members.append((height, max(height, LOG_ROWS), m, key))
        return cls(list(pairs.values()), sizes)

    def lists(self, key: int, problem: Problem) -> bool:
        """Whether the rows have the sizes of a problem under its key. Another program may have written others."""
        return self.sizes[key] == (problem.m, problem.n, problem.k)

    def nearest(self, problem: Problem, limit: int, within: Sequence[float], metric: Metric) -> list[tuple[float, int]]:
        """The distances and keys of at most `limit` of the problems that a `statement` with the bounds `within` finds,
        nearest first. The problem itself is included."""
        m = problem.doublings[0]
        tiles, (by_rows, by_tiles) = max(m, LOG_ROWS), (metric.rows**2, metric.tiles**2)
        (n0, n1), (k0, k1), (m0, m1) = bounds(problem, within)
        found: list[tuple[float, int]] = []
        farthest = math.inf
        for beside, members in self._around(problem, (n0, n1, k0, k1)):
            if beside > farthest:  # Its members are farther away than all of those found.
                break
            found += [
                (by_rows * (a - m) * (a - m) + by_tiles * (t - tiles) * (t - tiles) + beside, key)
                for a, t, height, key in members
                if m0 <= height <= m1
            ]
            if len(found) >= 2 * limit:  # Not after each pair: that sorts too often.
                found.sort()
                del found[limit:]
                farthest = found[-1][0] if found else 0.0
        found.sort()
        return [(math.sqrt(square), key) for square, key in found[:limit]]

    def _around(self, problem: Problem, within: tuple[int, int, int, int]) -> Sequence[_Around]:
        """The pairs around N and K, nearest first: the squares of their distances, and the members. `within`: the least
        and the largest N and K. Many problems of a program share N and K."""
        where = problem.n, problem.k, within
        known = self.around.get(where)
        if known is None:
            if len(self.around) >= min(_SHAPES, _ENTRIES // max(len(self.pairs), 1)):
                self.around.clear()
            (_, log_n, log_k), (n0, n1, k0, k1) = problem.doublings, within
            known = [
                ((b - log_n) * (b - log_n) + (c - log_k) * (c - log_k), members)
                for b, c, columns, depth, members in self.pairs
                if n0 <= columns <= n1 and k0 <= depth <= k1
            ]
            known.sort(key=itemgetter(0))
            self.around[where] = known
        return known


def bounds(problem: Problem, within: Sequence[float]) -> list[tuple[int, int]]:
    """The least and the largest N, K and M `within` these ratios of M, N and K; no bound if empty."""
    m, n, k = within or (math.inf,) * 3
    sizes = ((max(problem.n, 1), n), (max(problem.k, 1), k), (max(problem.m, 1), m))
    return [(math.floor(size / factor), math.ceil(min(size * factor, LARGEST_SIZE))) for size, factor in sizes]


def keys(rows: Iterable[tuple[Any, ...]], problem: Problem, limit: int, ratio: float = math.inf) -> list[int]:
    """The keys of at most `limit` of the problems in `rows` (the result of a `statement`), nearest first by Euclidean
    distance of (log M, log N, log K). The problem itself is included. None is farther than one of which a single size
    has this `ratio` to that of the problem."""
    log = math.log
    m, n, k = (log(max(size, 1)) for size in (problem.m, problem.n, problem.k))
    found, farthest = [], log(ratio) ** 2
    for key, height, columns, depth in rows:
        a, b, c = log(height or 1) - m, log(columns or 1) - n, log(depth or 1) - k
        found.append((a * a + b * b + c * c, key))
    return [key for distance, key in nsmallest(limit, found) if distance <= farthest]


def statement(
    problem: Problem, device: int, protocols: Sequence[int], within: Sequence[float] = (), most: int | None = None
) -> Statement:
    """The query for (id, m, n, k) of the problems of the same op and family that have a verdict for the device under
    one of the protocols. `within`: the largest ratios of M, N and K to those of the problem; no bound if empty. `most`:
    so many rows at most."""
    args: list[Any] = [problem.family_key, *chain(*bounds(problem, within))]
    marks = ", ".join("?" * len(protocols))
    sql = (
        "SELECT id, m, n, k FROM problem INDEXED BY problem_family WHERE family = ?"
        " AND n BETWEEN ? AND ? AND k BETWEEN ? AND ? AND m BETWEEN ? AND ? AND EXISTS"
        f" (SELECT 1 FROM verdict WHERE verdict.problem = id AND device = ? AND protocol IN ({marks}))"
    )
    args += [device, *protocols]
    return (sql, args) if most is None else (f"{sql} LIMIT ?", [*args, most])


FAMILY_AFTER = "SELECT family, id FROM problem INDEXED BY problem_family WHERE family > ? ORDER BY family LIMIT 1"
"""The query for a problem of the family with the next larger key. It takes one probe of the index."""
