"""How far two problems of one family are apart."""

from __future__ import annotations

import math

from gemmdb.key.problem import Problem
from gemmdb.table.neighbours import PLAIN, Metric

METRICS = {"cuda": Metric(rows=0.4, tiles=0.8)}
"""By kind of device, PLAIN for others. On a GPU, M matters mostly through the number of rows of tiles."""

BATCH = 0.5
"""The weight of a doubling of the number of matrices, which changes how many waves of programs there are. Of 0.25,
0.35, 0.5 and 0.7, held-out H200 rows of bmm got the best answers with this."""


def same_side(query: Problem, other: Problem) -> bool:
    """Whether both problems have the same sizes equal to 1. Every BLAS has separate kernels for matrix-vector products,
    so their times say nothing about the others."""
    sides = (query.m == 1) == (other.m == 1) and (query.n == 1) == (other.n == 1) and (query.k == 1) == (other.k == 1)
    return sides and other.m > 0 and other.n > 0 and other.k > 0


def metric(kind: str) -> Metric:
    """How far two problems are apart on a kind of device."""
    return METRICS.get(kind, PLAIN)


def beyond_batch(query: Problem, other: Problem, distance: float) -> float:
    """The distance of two products of batches whose matrices are `distance` apart."""
    return math.hypot(distance, BATCH * math.log2(max(query.batch, 1) / max(other.batch, 1)))
