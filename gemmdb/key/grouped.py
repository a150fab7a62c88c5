"""The rules of `grouped_mm`, the products of groups whose sizes are data, that go beyond the fields of its record.

As in `torch._grouped_mm`, offsets on the device say where each group ends along one dimension, the *ragged* one. Nobody
knows them before the program runs, so a Problem has the number of groups and the total size of that dimension, and an
answer holds for every way to divide it. Groups of fp8 have scales, as in `torch._scaled_grouped_mm`: an fp32 number for
each row of A [M], and one for each column of each group's B [groups, N].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmdb.key import fp8

if TYPE_CHECKING:
    from gemmdb.key.problem import Problem

FP8 = ("fp8_e4m3",)
DTYPES = ("bf16", "fp16", *FP8)
RAGGED = ("m", "k")
"""Which size the offsets divide. `m`: each group has rows of A [M, K] and a matrix of its own in B [groups, K, N], as
the experts of a mixture have. `k`: each has columns of A [M, K] and rows of B [K, N], and the output is
[groups, M, N]: the gradient of the experts' weights."""


def unlike(problem: Problem) -> str | None:
    """Why a problem is not a grouped_mm, None when it is one."""
    if problem.ragged not in RAGGED:
        return f"the offsets divide one of the sizes {', '.join(RAGGED)}, got {problem.ragged!r}"
    if problem.scalars != "unit":
        return "it has no alpha and beta"
    if problem.scaled:
        return _unlike_scaled(problem)
    if problem.out != problem.a.dtype:
        return f"the output has the dtype of A, {problem.a.dtype}, not {problem.out}"
    return _apart(problem)


def _unlike_scaled(problem: Problem) -> str | None:
    if problem.scales != "row":
        return f"groups of fp8 have scales of rows and columns, got {problem.scales!r}"
    if problem.ragged != "m":
        return "groups of fp8 divide M: no kernel is measured of those that divide K, where each has scales of its own"
    if problem.out != "bf16":
        return f"the output of groups of fp8 is bf16, not {problem.out}"
    return _apart(problem) or fp8.unlike_operands(problem.a.layout, problem.b.layout, (problem.k, problem.n))


def _apart(problem: Problem) -> str | None:
    if problem.a.layout.batch or problem.b.layout.batch:
        return "the matrices of the groups follow each other in memory"
    return None


FEW = 4
"""In the sparsest split that is measured, one of so many groups has work."""


def active(problem: Problem) -> int:
    """How many groups have work at most: as many as there are rows, or elements of K, to divide."""
    return min(problem.groups, problem.m if problem.ragged == "m" else problem.k)


def fewest(problem: Problem) -> int:
    """How many groups have work in the sparsest split that is measured."""
    return max(active(problem) // FEW, 1)
