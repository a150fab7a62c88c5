"""The statements that list the problems near one, in a table of measurements and in a packed table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

from gemmdb.key.problem import Problem
from gemmdb.key.rules import LARGEST_SIZE
from gemmdb.table.packed_records import MEASURED


def packed_statement(l2: str) -> str:
    """Return the query for (problem, m, n, k, batch) of the problems of a family, by its number and that of the device,
    that have a measured verdict in a packed table."""
    bit = MEASURED[l2]
    states = ", ".join(f"x'{state:02x}'" for state in range(sum(MEASURED.values()) + 1) if state & bit)
    where = f"family = ? AND device = ? AND substr(data, 2, 1) IN ({states})"
    return f"SELECT problem, m, n, k, batch FROM record WHERE {where}"


def bounds(problem: Problem, within: Sequence[float]) -> list[tuple[int, int]]:
    """Return the minimum and maximum N, K and M `within` these ratios of M, N and K; unbounded if empty."""
    m, n, k = within or (math.inf,) * 3
    sizes = ((max(problem.n, 1), n), (max(problem.k, 1), k), (max(problem.m, 1), m))
    return [(math.floor(size / factor), math.ceil(min(size * factor, LARGEST_SIZE))) for size, factor in sizes]


def statement(
    problem: Problem, device: int, protocols: Sequence[int], within: Sequence[float] = (), most: int | None = None
) -> tuple[str, list[Any]]:
    """Return the query and its arguments for (id, m, n, k) of the problems of the same op and family with a verdict for
    the device under one of the protocols. `within`: maximum ratios of M, N and K to the problem's; unbounded if empty.
    `most`: row limit."""
    args: list[Any] = [problem.family_key, *chain(*bounds(problem, within))]
    marks = ", ".join("?" * len(protocols))
    sql = (
        "SELECT id, m, n, k FROM problem INDEXED BY problem_family WHERE family = ?"
        " AND n BETWEEN ? AND ? AND k BETWEEN ? AND ? AND m BETWEEN ? AND ? AND EXISTS"
        f" (SELECT 1 FROM verdict WHERE verdict.problem = id AND device = ? AND protocol IN ({marks}))"
    )
    args += [device, *protocols]
    return (sql, args) if most is None else (f"{sql} LIMIT ?", [*args, most])
