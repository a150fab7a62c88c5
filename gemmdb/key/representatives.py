"""Which classes of epilogues a build or live tuning measures, and the sizes of their representatives."""

from __future__ import annotations

from gemmdb.key.problem import Problem
from gemmdb.rejected import Rejected

HEADS = (64, 32, 16, 8)
"""The sizes of a head; the first one that divides N into several is used."""


def rejection(problem: Problem) -> Rejected | None:
    """Why no representative of a problem's epilogue is measured; None if one is."""
    own = problem.epilogue
    if own is None:
        return None
    if own.arithmetic == "random":
        return Rejected("dropout is not measured: its seed is drawn once for a whole program")
    if problem.ragged == "k":
        return Rejected("no epilogue is measured of groups that divide K: it is stored for each")
    if own.stored == "int8":
        return Rejected("results of one byte are not measured: rounding would hide errors")
    if problem.spec.integer and own.arithmetic != "light":
        return Rejected("no exponential of an integer GEMM is measured")
    if own.order == "permuted" and not problem.spec.batched and not head(problem.n):
        return Rejected(f"{problem.n} columns have no heads")
    return None


def head(n: int) -> int:
    """The columns of one head of `n` columns; 0 if they have none."""
    return next((size for size in HEADS if n % size == 0 and n > size), 0)
