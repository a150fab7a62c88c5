"""Which classes of epilogues a build or live tuning measures, and the sizes of their representatives."""

from __future__ import annotations

from gemmdb.key.problem import Problem

HEADS = (64, 32, 16, 8)
"""The sizes of a head; the first one that divides N into several is used."""


def unmeasured(problem: Problem) -> str | None:
    """Why no representative of a problem's epilogue is measured; None if one is."""
    own = problem.epilogue
    if own is None:
        return None
    if own.arithmetic == "random":
        return "dropout is not measured: its seed is drawn once for a whole program"
    if problem.ragged == "k":
        return "no epilogue is measured of groups that divide K: it is stored for each"
    if own.stored == "int8":
        return "results of one byte are not measured: rounding would hide errors"
    if problem.spec.integer and own.arithmetic != "light":
        return "no exponential of an integer product is measured"
    if own.order == "permuted" and not problem.spec.batched and not head(problem.n):
        return f"{problem.n} columns have no heads"
    return None


def head(n: int) -> int:
    """The columns of one head of `n` columns; 0 if they have none."""
    return next((size for size in HEADS if n % size == 0 and n > size), 0)
