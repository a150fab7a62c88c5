"""Neighbours: the measured problems near a problem, and what was wrong or crashed there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gemmdb.kernels import aten
from gemmdb.kernels.config import Config
from gemmdb.key.problem import Problem
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.timings import failed
from gemmdb.table.neighbours import PLAIN, Metric
from gemmdb.table.reader import Table

METRICS = {"cuda": Metric(rows=0.4, tiles=0.8)}
"""By kind of device, PLAIN for others. On a GPU, M matters mostly through the number of rows of tiles."""
BATCH_WEIGHT = 0.5
"""The weight of a doubling of the number of matrices, which changes how many waves of programs there are. Of 0.25,
0.35, 0.5 and 0.7, held-out H200 rows of bmm got the best answers with this."""
MOST_DISTANCE = 3.0
"""The largest distance to any neighbour that is used, in doublings."""
MOST_NEIGHBOURS = 8
"""The most neighbours that one prediction uses."""
MOST_RATIOS = (32.0, 8.0, 8.0)
"""The largest ratios of M, N and K to those of a neighbour. A table is searched no farther."""
MOST_READ, MOST_READ_OF_BATCHES = 32, 64
"""The most neighbours that are read from each table, and those of a batch, of which the table only compares the
matrices. 32 find the same MOST_NEIGHBOURS for all of 400 problems of the H200's table as 2,000 do."""
FAILURE_PLACES = 2 * MOST_NEIGHBOURS
"""At how many places nearby failures count: also at those whose times are of no use."""

_Place = tuple[float, str, int, Problem, Table]
"""The distance to a problem, its text, the place of a table that holds it, the problem, and the table."""


class Neighbour(NamedTuple):
    """A measured problem, the tables that hold it, in order, and its distance in doublings."""

    problem: Problem
    tables: Sequence[Table]
    distance: float


def metric(kind: str) -> Metric:
    """How far two problems are apart on a kind of device."""
    return METRICS.get(kind, PLAIN)


def same_side(query: Problem, other: Problem) -> bool:
    """Whether both problems have the same sizes equal to 1. Every BLAS has separate kernels for matrix-vector products,
    so their times say nothing about the others."""
    sides = (query.m == 1) == (other.m == 1) and (query.n == 1) == (other.n == 1) and (query.k == 1) == (other.k == 1)
    return sides and other.m > 0 and other.n > 0 and other.k > 0


def neighbours(ask: Ask) -> Iterator[Neighbour]:
    """The neighbours of the problem in all tables, nearest first. On a GPU, the output's rows start at multiples of 16
    bytes in all of them or in none: cuBLAS has separate kernels."""
    query, gpu = ask.problem, ask.device.kind == "cuda"
    own, apart = query.text, gpu and aten.stored_apart(query)
    places = iter(_places(ask))
    place = next(places, None)
    while place is not None:
        distance, text, _, problem, table = place
        tables = [table]
        while (place := next(places, None)) is not None and place[1] == text:
            tables.append(place[4])
        if text != own and same_side(query, problem) and (not gpu or aten.stored_apart(problem) == apart):
            yield Neighbour(problem, tables, distance)


def unfit(ask: Ask) -> frozenset[Config]:
    """The configs that may not be served where nobody measured them: they were wrong or crashed on the problem itself,
    or at a neighbour, in any table. What was measured at the problem itself, and was right, may be served.

    A size of 1 says nothing about times elsewhere, but a kernel that is wrong there is wrong elsewhere too."""
    known: frozenset[Config] | None = ask.memo.get("unfit")
    if known is None:
        near = [place for place in _places(ask)[:FAILURE_PLACES] if place[0] <= MOST_DISTANCE]
        found = [failed(ask, table, ask.problem) for table in ask.tables]
        found += [failed(ask, table, problem) for _, _, _, problem, table in near]
        known = ask.memo["unfit"] = frozenset[Config]().union(*filter(None, found))
    return known


def _places(ask: Ask) -> list[_Place]:
    """The problems nearby in all tables, nearest first, and those that several tables hold in the order of these."""
    found: list[_Place] | None = ask.memo.get("places")
    if found is None:
        found = ask.memo["places"] = [] if ask.problem.empty else _find(ask)
    return found


def _find(ask: Ask) -> list[_Place]:
    query = ask.problem
    by, most = metric(ask.device.kind), MOST_READ_OF_BATCHES if query.spec.batched else MOST_READ
    found: list[_Place] = []
    for place, table in enumerate(ask.tables):
        problems = ask.read(Table.distances, table, query, ask.device, ask.query.l2, most, MOST_RATIOS, by) or ()
        found += [(distance, one.text, place, one, table) for distance, one in problems]
    if query.spec.batched:
        found = [(_beyond_batch(query, place), *place[1:]) for place in found]
    found.sort()  # No two have all of the first three in common.
    return found


def _beyond_batch(query: Problem, place: _Place) -> float:
    """The distance of a place, which is that of the matrices, with that of the number of matrices."""
    return math.hypot(place[0], BATCH_WEIGHT * math.log2(max(query.batch, 1) / max(place[3].batch, 1)))
