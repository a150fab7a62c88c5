"""Finds the problems of a table that are nearest to a problem, by an index on family and sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from heapq import nsmallest
from typing import Any

from gemmdb.key.problem import Problem
from gemmdb.key.rules import LARGEST_SIZE

STATE = "SELECT value FROM meta WHERE name = 'rows_digest'"
"""The query for the digest that changes with every row written to a file."""

Statement = tuple[str, list[Any]]
"""A query and its arguments."""


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
    args: list[Any] = [problem.family_key]
    m, n, k = within or (math.inf,) * 3
    for size, factor in ((problem.n, n), (problem.k, k), (problem.m, m)):
        size = max(size, 1)
        args += [math.floor(size / factor), math.ceil(min(size * factor, LARGEST_SIZE))]
    marks = ", ".join("?" * len(protocols))
    sql = (
        "SELECT id, m, n, k FROM problem INDEXED BY problem_family WHERE family = ?"
        " AND n BETWEEN ? AND ? AND k BETWEEN ? AND ? AND m BETWEEN ? AND ? AND EXISTS"
        f" (SELECT 1 FROM verdict WHERE verdict.problem = id AND device = ? AND protocol IN ({marks}))"
    )
    return sql, [*args, device, *protocols]


FAMILY_AFTER = "SELECT family, id FROM problem INDEXED BY problem_family WHERE family > ? ORDER BY family LIMIT 1"
"""The query for a problem of the family with the next larger key. It takes one probe of the index."""
