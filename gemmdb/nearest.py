"""Which problems of a table lie nearest to a problem, by an index on its family and sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import nsmallest
from typing import Any

from gemmdb.problem import LARGEST_SIZE, Problem
from gemmdb.rows import Fetch

_WINDOWS = (4, 64, None)
"""Factors on each size within which neighbours are looked for, one after the other; None is without bound."""


def keys(fetch: Fetch, problem: Problem, device: int, protocols: Sequence[int], limit: int) -> list[int]:
    """The keys of at most `limit` problems of the same op and family that have a verdict for the device under one of
    the protocols, nearest first by the Euclidean distance of (log M, log N, log K); the problem itself included."""
    here = (problem.m, problem.n, problem.k)
    found: list[tuple[float, int]] = []
    for factor in _WINDOWS:
        sql, args = statement(problem, device, protocols, factor)
        found = nsmallest(limit, ((distance(here, sizes), key) for key, *sizes in fetch(sql, args)))
        # Whatever lies outside the window is farther away than its half width.
        if factor and len(found) == limit and found[-1][0] <= math.log(factor):
            break
    return [key for _, key in found]


def distance(one: Sequence[int], other: Sequence[int]) -> float:
    """The Euclidean distance of the logarithms of two (M, N, K); sizes of 0 count as 1."""
    return math.dist([math.log(max(x, 1)) for x in one], [math.log(max(x, 1)) for x in other])


def statement(problem: Problem, device: int, protocols: Sequence[int], factor: int | None) -> tuple[str, list[Any]]:
    """The query for (id, m, n, k) within `factor` of each of the problem's sizes, and its arguments."""
    args: list[Any] = [problem.family_key]
    for size in (problem.n, problem.k, problem.m):
        size = max(size, 1)
        args += [size // factor if size >= factor else 0, size * factor] if factor else [0, LARGEST_SIZE]
    marks = ", ".join("?" * len(protocols))
    sql = (
        "SELECT id, m, n, k FROM problem INDEXED BY problem_family WHERE family = ?"
        " AND n BETWEEN ? AND ? AND k BETWEEN ? AND ? AND m BETWEEN ? AND ? AND EXISTS"
        f" (SELECT 1 FROM verdict WHERE verdict.problem = id AND device = ? AND protocol IN ({marks}))"
    )
    return sql, [*args, device, *protocols]
