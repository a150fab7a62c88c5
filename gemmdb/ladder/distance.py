"""How far two problems of one family are apart."""

from __future__ import annotations

import math
from collections.abc import Callable

from gemmdb.key.problem import Problem

LOG_ROWS = 4.0
"""log2 of the 16 rows of the smallest tile. Fewer rows cost about as much."""

BATCH = 0.5
"""The weight of a doubling of the number of matrices, which changes how many waves of programs there are. Of 0.25,
0.35, 0.5 and 0.7, held-out H200 rows of bmm got the best answers with this."""


def same_side(query: Problem, other: Problem) -> bool:
    """Whether both problems have the same sizes equal to 1. Every BLAS has separate kernels for matrix-vector products,
    so their times say nothing about the others."""
    sides = (query.m == 1) == (other.m == 1) and (query.n == 1) == (other.n == 1) and (query.k == 1) == (other.k == 1)
    return sides and other.m > 0 and other.n > 0 and other.k > 0


def distances(query: Problem, kind: str) -> Callable[[float, float, float], float]:
    """The distance from the query to a problem with these `doublings`, Euclidean over M, N and K. On a GPU, M matters
    mostly through the number of rows of tiles."""
    m, n, k = query.doublings
    rows, hypot = max(m, LOG_ROWS), math.hypot

    def by_sizes(height: float, columns: float, depth: float) -> float:
        return hypot(height - m, columns - n, depth - k)

    def by_tiles(height: float, columns: float, depth: float) -> float:
        tiles = 0.8 * ((height if height > LOG_ROWS else LOG_ROWS) - rows)
        return hypot(tiles, 0.4 * (height - m), columns - n, depth - k)

    return by_tiles if kind == "cuda" else by_sizes


def beyond_batch(query: Problem, other: Problem, distance: float) -> float:
    """The distance of two products of batches whose matrices are `distance` apart."""
    return math.hypot(distance, BATCH * math.log2(max(query.batch, 1) / max(other.batch, 1)))
