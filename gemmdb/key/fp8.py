"""What a product of fp8 operands with scales, a `scaled_mm`, may be made of: the part of it that a key can say.

C = (A * scale_a) @ (B * scale_b) + bias, as `torch._scaled_mm` has it: the scales are fp32, and multiply the sums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmdb.key.layout import Layout
from gemmdb.key.operands import Bias

if TYPE_CHECKING:
    from gemmdb.key.problem import Problem

FP8 = ("fp8_e4m3", "fp8_e5m2")
"""torch.float8_e4m3fn and torch.float8_e5m2."""
SCALES = ("tensor", "row")
"""One number for each operand, or one for each row of A [M, 1] and each column of B [1, N]."""
OUTPUTS = ("bf16", "fp16", "fp32")
_ROWS, _COLUMNS = ("row", "row-padded"), ("col", "col-padded")


def unlike(problem: Problem) -> str | None:
    """Why a problem is no scaled_mm, None when it is one."""
    if problem.scalars != "unit":
        return "its scales are those of the operands; it has no alpha and beta"
    reason = unlike_rest(problem.scales, problem.out, problem.bias)
    return reason or unlike_operands(problem.a.layout, problem.b.layout, (problem.k, problem.n))


def unlike_operands(a: Layout, b: Layout, sizes: tuple[int, int]) -> str | None:
    """Why operands of these layouts, B of `sizes` (K, N), are not multiplied in fp8, None when they are.

    The matrix units of NVIDIA GPUs take fp8 with K along memory in both operands, and torch asks for that everywhere it
    compiles. A matrix with one row or column is in either order.
    """
    if a.order not in _ROWS:
        return f"A lies by rows in memory, not {a.order}: the layout is nt"
    if b.order not in _COLUMNS and not (b.order in _ROWS and min(sizes) <= 1):
        return f"B lies by columns in memory, not {b.order}: the layout is nt"
    return None


def unlike_rest(scales: str, out: str, bias: Bias | None) -> str | None:
    """Why scales, output dtype and bias are none of a scaled_mm, None when they are."""
    if scales not in SCALES:
        return f"scales are of one of the kinds {', '.join(SCALES)}, got {scales!r}"
    if out not in OUTPUTS:
        return f"the output is one of {', '.join(OUTPUTS)}, got {out!r}"
    if bias is not None and (bias.kind != "1d" or bias.dtype not in OUTPUTS):
        return f"a bias is 1d and of one of {', '.join(OUTPUTS)}, got {bias.text}"
    return None
