"""GEMMs whose rows do not start at multiples of 16 bytes, by the times of the same GEMM with rows that do.

ATen has no fast kernel for them: its tensor copies need such rows. A kernel of ours that reads by pointers only loads
or stores in smaller pieces. So our kernels win by more than on any other dense GEMM, and the layers of some models,
such as a vocabulary of 50,257 or a width of 2,730, are such GEMMs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from gemmdb.cost.roofline import work_us
from gemmdb.kernels.aten import stored_apart
from gemmdb.key.device import Device
from gemmdb.key.layout import ITEM_SIZES, VECTOR_BYTES
from gemmdb.key.operands import Operand
from gemmdb.key.problem import Problem

OPS, DTYPES = ("mm", "addmm"), ("bf16", "fp16")


class Slower(NamedTuple):
    """How many times as long ATen and a kernel of ours take as for the aligned GEMM."""

    aten: float = 1.0
    ours: float = 1.0


BY_ROWS = (16, 256)
"""The largest M of each class of `SLOWER` but the last."""
SLOWER = {
    (True, False): (Slower(1.2, 1.2), Slower(3.1, 1.2), Slower(3.7, 1.4)),
    (False, True): (Slower(2.4, 1.0), Slower(2.4, 1.0), Slower(3.1, 1.0)),
    (True, True): (Slower(2.5, 1.4), Slower(2.4, 1.7), Slower(4.1, 2.2)),
}
"""By whether rows of (an operand, the output) are misaligned, and by M: the medians of 169 GEMMs in the H200 table over
what the cost model expects for the aligned GEMM; a test computes them again."""


SHALLOW_US, SHALLOW_ATEN = 2.0, 2.1
"""With a shallow K, a kernel of ours takes SHALLOW_US more than its bytes, and ATen takes SHALLOW_ATEN times as long.
For 512 x 512 x 13 on an H200, cuBLAS took 4.3 us where a Triton kernel took 2.1."""


def is_misaligned(problem: Problem) -> bool:
    """Whether some rows start between multiples of 16 bytes, in a GEMM of a kind that was measured with such rows."""
    return problem.op in OPS and problem.a.dtype in DTYPES and any(_apart(problem))


def aligned(problem: Problem) -> Problem:
    """The same problem with N and K rounded up to multiples of 16 bytes, and all rows starting at such multiples; the
    problem itself unless it is misaligned."""
    if not is_misaligned(problem):
        return problem
    step = VECTOR_BYTES // ITEM_SIZES[problem.a.dtype]
    n, k = (-(-size // step) * step for size in (problem.n, problem.k))
    return replace(problem, n=n, k=k, a=_whole(problem.a), b=_whole(problem.b))


def slower(problem: Problem) -> Slower:
    """How much longer the problem takes than the `aligned` one."""
    if not is_misaligned(problem):
        return Slower()
    return SLOWER[_apart(problem)][sum(problem.m > most for most in BY_ROWS)]


def shallow_us(problem: Problem, device: Device) -> tuple[float, float]:
    """The expected microseconds of a misaligned problem with a shallow K, with ATen and with a kernel of ours."""
    us = SHALLOW_US + work_us(problem, device)
    return SHALLOW_ATEN * us, us


def _apart(problem: Problem) -> tuple[bool, bool]:
    """Whether rows of (an operand, the output) start between multiples of 16 bytes."""
    operands = (problem.a, problem.b)
    read = any(one.layout.align * ITEM_SIZES[one.dtype] < VECTOR_BYTES for one in operands)
    return read, stored_apart(problem)


def _whole(operand: Operand) -> Operand:
    """The operand with rows at multiples of 16 bytes."""
    step = VECTOR_BYTES // ITEM_SIZES[operand.dtype]
    return replace(operand, layout=replace(operand.layout, align=max(operand.layout.align, step)))
