"""Neighbours: measured problems near a problem, and the configs that were wrong or crashed there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from gemmdb.kernels import aten
from gemmdb.kernels.config import Config
from gemmdb.kernels.rules import shallow
from gemmdb.key.problem import Problem
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.timings import failed
from gemmdb.table.neighbours import PLAIN, Metric
from gemmdb.table.reader import Table

METRICS = {"cuda": Metric(rows=0.4, tiles=0.8)}
"""By device kind; others use PLAIN. On a GPU, M matters mostly through the number of tile rows."""
BATCH_WEIGHT = 0.5
"""Weight of a doubling of the batch size, which changes the number of waves. Among 0.25, 0.35, 0.5 and 0.7, this gave
the best configs on held-out H200 bmm rows."""
MOST_DISTANCE = 3.0
"""Maximum distance to any neighbour, in doublings."""
MOST_NEIGHBOURS = 8
"""Maximum number of neighbours per prediction."""
MOST_RATIOS = (32.0, 8.0, 8.0)
"""Maximum ratios of M, N and K to those of a neighbour. The search of a table stops there."""
MOST_READ, MOST_READ_OF_BATCHES = 32, 64
"""Maximum number of neighbours read from each table, and the same for batched GEMMs, where the table compares only M, N
and K. On all of 400 problems in the H200 table, 32 find the same MOST_NEIGHBOURS as 2,000."""
FAILURE_PLACES = 2 * MOST_NEIGHBOURS
"""Number of nearby problems whose failures count, including those without usable times."""

FORMAT_DISTANCE = 0.25
"""Distance in doublings for each difference in how an int4 weight is scaled and packed, and in the dtype of its
activations."""

_Place = tuple[float, str, int, Problem, Table]
"""Distance to a problem, its text, the position of its table, the problem, and the table."""


class Neighbour(NamedTuple):
    """A measured problem, the tables that contain it, in order, and its distance in doublings."""

    problem: Problem
    tables: Sequence[Table]
    distance: float


def metric(kind: str) -> Metric:
    """Return the distance metric for a device kind."""
    return METRICS.get(kind, PLAIN)


def same_side(query: Problem, other: Problem) -> bool:
    """Return whether the same sizes equal 1 in both problems, and both have a shallow K or neither. Every BLAS has
    separate kernels for matrix-vector products, so their times do not predict those of other GEMMs. For a K of 13,
    cuBLAS took 4.3 us where a Triton kernel took 2.1 (M = N = 512), but GEMMs with a larger K had no such gain.
    The rows of a grouped GEMM are those of all groups, so one of them is no other case than two."""
    if shallow(query) != shallow(other):
        return False
    rows = query.ragged == "m" or (query.m == 1) == (other.m == 1)
    sides = rows and (query.n == 1) == (other.n == 1) and (query.k == 1) == (other.k == 1)
    return sides and other.m > 0 and other.n > 0 and other.k > 0


def neighbours(ask: Ask) -> Iterator[Neighbour]:
    """Yield the problem's neighbours in all tables, nearest first. On a GPU, neighbours match in whether output rows
    are 16-byte aligned: cuBLAS has separate kernels."""
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
    """Return the configs that must not be served without a measurement: they were wrong or crashed on the problem
    itself or at a neighbour, in any table. A config measured as correct at the problem itself may be served.

    Times at a size of 1 do not predict other times, but a kernel that is wrong there is wrong elsewhere too."""
    known: frozenset[Config] | None = ask.memo.get("unfit")
    if known is None:
        near = [place for place in _places(ask)[:FAILURE_PLACES] if place[0] <= MOST_DISTANCE]
        found = [failed(ask, table, ask.problem) for table in ask.tables]
        found += [failed(ask, table, problem) for _, _, _, problem, table in near]
        known = ask.memo["unfit"] = frozenset[Config]().union(*filter(None, found))
    return known


def _places(ask: Ask) -> list[_Place]:
    """Return the nearby problems in all tables, nearest first; a problem in several tables repeats in table order."""
    found: list[_Place] | None = ask.memo.get("places")
    if found is None:
        found = ask.memo["places"] = [] if ask.problem.empty else _find(ask)
    return found


def _find(ask: Ask) -> list[_Place]:
    query = ask.problem
    by, most = metric(ask.device.kind), MOST_READ_OF_BATCHES if query.spec.batched else MOST_READ
    found: list[_Place] = []
    for place, table in enumerate(ask.tables):
        for more, like in ((0.0, query), *_other_formats(ask, table)):
            problems = ask.read(Table.distances, table, like, ask.device, ask.query.l2, most, MOST_RATIOS, by) or ()
            found += [(distance + more, one.text, place, one, table) for distance, one in problems]
    if query.spec.batched:
        found = [(_beyond_batch(query, place), *place[1:]) for place in found]
    found.sort()  # No two share all of the first three fields.
    return found


def _other_formats(ask: Ask, table: Table) -> Iterator[tuple[float, Problem]]:
    """Yield the problem with a weight of each other format in the table that has the same layout in memory, or with
    activations of the other 16-bit dtype, with the distance between the formats. A kernel reads as many bytes
    either way, and the size of groups, zero points and the order in a word change little else. Only where a compile
    times the kernel before it serves it."""
    problem = ask.problem
    if problem.int4 is None or not ask.confirms:
        return
    for example in ask.read(Table.families, table) or ():
        if example.int4 is None or not problem.int4.same_layout(example.int4):
            continue
        if example.int4.size > problem.int4.size:
            continue  # Its kernels may sum over more of K than have one scale here.
        a, b = replace(problem.a, dtype=example.a.dtype), replace(problem.b, dtype=example.b.dtype)
        like = replace(problem, int4=example.int4, a=a, b=b, out=example.out)
        if like != problem and like.family == example.family and like.op == example.op:
            traits = zip(_format(problem), _format(like), strict=True)
            yield FORMAT_DISTANCE * sum(x != y for x, y in traits), like


def _format(problem: Problem) -> tuple[object, ...]:
    """Return how a weight is scaled and packed. Zero points of the activation's dtype are floats."""
    own = problem.int4
    assert own is not None
    zeros = "float" if own.zeros == problem.a.dtype else own.zeros
    return problem.a.dtype, problem.b.dtype, own.size, zeros, own.packing


def _beyond_batch(query: Problem, place: _Place) -> float:
    """Return the distance of a place, which covers M, N and K, extended by the batch size."""
    return math.hypot(place[0], BATCH_WEIGHT * math.log2(max(query.batch, 1) / max(place[3].batch, 1)))
