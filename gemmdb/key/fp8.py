"""The rules of products of fp8 operands with scales that go beyond the fields of a record: those of `scaled_mm`, and
what the groups of a `grouped_mm` share with it.

C = (A * scale_a) @ (B * scale_b) + bias, as in `torch._scaled_mm`: the fp32 scales multiply the sums, those of blocks
the sum of each block along K.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmdb.key.layout import Layout
from gemmdb.key.operands import Bias

if TYPE_CHECKING:
    from gemmdb.key.problem import Problem

FP8 = ("fp8_e4m3", "fp8_e5m2")
"""torch.float8_e4m3fn and torch.float8_e5m2."""
SCALES = ("tensor", "row", "block")
"""One number for each operand; one for each row of A [M, 1] and each column of B [1, N]; or one for each BLOCK elements
of a row of A [M, K / BLOCK] and each BLOCK x BLOCK elements of B [K / BLOCK, N / BLOCK], rounded up."""
BLOCK = 128
OUTPUTS = ("bf16", "fp16", "fp32")
_ROWS, _COLUMNS = ("row", "row-padded"), ("col", "col-padded")


def scale_sizes(scales: str, m: int, n: int, k: int, groups: int = 0) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The sizes of the scales of A and B, of one of SCALES; none for a single number. Groups have scales of their own
    for B, as vectors: [M] and [groups, N]."""
    if groups:
        return (m,), (groups, n)
    if scales == "row":
        return (m, 1), (1, n)
    deep, wide = -(-k // BLOCK), -(-n // BLOCK)
    return ((m, deep), (deep, wide)) if scales == "block" else ((), ())


def unlike(problem: Problem) -> str | None:
    """Why a problem is not a scaled_mm, None when it is one."""
    if problem.scalars != "unit":
        return "its scales are those of the operands; it has no alpha and beta"
    reason = _unlike_rest(problem.scales, problem.out, problem.bias)
    return reason or unlike_operands(problem.a.layout, problem.b.layout, (problem.k, problem.n))


def unlike_operands(a: Layout, b: Layout, sizes: tuple[int, int]) -> str | None:
    """Why fp8 operands of these layouts cannot be multiplied, None when they can. `sizes`: K and N.

    The matrix units of NVIDIA GPUs take fp8 only with K along memory in both operands, and torch requires that on every
    device. A matrix with one row or column has both orders.
    """
    if a.order not in _ROWS:
        return f"A lies by rows in memory, not {a.order}: the layout is nt"
    if b.order not in _COLUMNS and not (b.order in _ROWS and min(sizes) <= 1):
        return f"B lies by columns in memory, not {b.order}: the layout is nt"
    return None


def _unlike_rest(scales: str, out: str, bias: Bias | None) -> str | None:
    """Why these scales, output dtype and bias do not belong to a scaled_mm, None when they do."""
    if scales not in SCALES:
        return f"scales are of one of the kinds {', '.join(SCALES)}, got {scales!r}"
    if out not in OUTPUTS:
        return f"the output is one of {', '.join(OUTPUTS)}, got {out!r}"
    if bias is not None and (bias.kind != "1d" or bias.dtype not in OUTPUTS):
        return f"a bias is 1d and of one of {', '.join(OUTPUTS)}, got {bias.text}"
    return None
