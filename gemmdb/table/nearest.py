"""Finds the problems of a table that are nearest to a problem, by an index on family and sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import chain
from typing import Any

from gemmdb.key.problem import Problem
from gemmdb.key.rules import LARGEST_SIZE

STATE = "SELECT value FROM meta WHERE name = 'rows_digest'"
"""The query for the digest that changes with every row written to a file."""

Statement = tuple[str, list[Any]]
"""A query and its arguments."""


@dataclass(frozen=True, slots=True)
class Family:
    """The problems of a family in a file that does not change: their sizes with the logarithms of these, and their
    keys."""

    members: Sequence[tuple[float, float, float, int, int, int, int]]

    @classmethod
    def of(cls, rows: Iterable[tuple[Any, ...]]) -> Family:
        """The family of the `rows` that a `statement` without bounds finds."""
        log = math.log
        return cls([(log(m or 1), log(n or 1), log(k or 1), m, n, k, key) for key, m, n, k in rows])

    def keys(self, problem: Problem, limit: int, within: Sequence[float]) -> list[int]:
        """What `keys` gives for the rows that a `statement` with the bounds `within` finds."""
        m, n, k = (math.log(max(size, 1)) for size in (problem.m, problem.n, problem.k))
        (n0, n1), (k0, k1), (m0, m1) = bounds(problem, within)
        found = [
            ((a - m) ** 2 + (b - n) ** 2 + (c - k) ** 2, key)
            for a, b, c, height, columns, depth, key in self.members
            if m0 <= height <= m1 and n0 <= columns <= n1 and k0 <= depth <= k1
        ]
        return [key for _, key in nsmallest(limit, found)]


def bounds(problem: Problem, within: Sequence[float]) -> list[tuple[int, int]]:
    """The least and the largest N, K and M `within` these ratios of M, N and K; no bound if empty."""
    m, n, k = within or (math.inf,) * 3
    sizes = ((max(problem.n, 1), n), (max(problem.k, 1), k), (max(problem.m, 1), m))
    return [(math.floor(size / factor), math.ceil(min(size * factor, LARGEST_SIZE))) for size, factor in sizes]


def keys(rows: Iterable[tuple[Any, ...]], problem: Problem, limit: int) -> list[int]:
    """The keys of at most `limit` of the problems in `rows` (the result of a `statement`), nearest first by Euclidean
    distance of (log M, log N, log K). The problem itself is included."""
    log = math.log
    m, n, k = (log(max(size, 1)) for size in (problem.m, problem.n, problem.k))
    found = [
        ((log(height or 1) - m) ** 2 + (log(columns or 1) - n) ** 2 + (log(depth or 1) - k) ** 2, key)
        for key, height, columns, depth in rows
    ]
    return [key for _, key in nsmallest(limit, found)]


def statement(problem: Problem, device: int, protocols: Sequence[int], within: Sequence[float] = ()) -> Statement:
    """The query for (id, m, n, k) of the problems of the same op and family that have a verdict for the device under
    one of the protocols. `within`: the largest ratios of M, N and K to those of the problem; no bound if empty."""
    args: list[Any] = [problem.family_key, *chain(*bounds(problem, within))]
    marks = ", ".join("?" * len(protocols))
    sql = (
        "SELECT id, m, n, k FROM problem INDEXED BY problem_family WHERE family = ?"
        " AND n BETWEEN ? AND ? AND k BETWEEN ? AND ? AND m BETWEEN ? AND ? AND EXISTS"
        f" (SELECT 1 FROM verdict WHERE verdict.problem = id AND device = ? AND protocol IN ({marks}))"
    )
    return sql, [*args, device, *protocols]


FAMILY_AFTER = "SELECT family, id FROM problem INDEXED BY problem_family WHERE family > ? ORDER BY family LIMIT 1"
"""The query for a problem of the family with the next larger key. It takes one probe of the index."""
