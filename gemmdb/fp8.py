"""What a product of fp8 operands with scales, a `scaled_mm`, may be made of: the part of it that a key can say.

C = (A * scale_a) @ (B * scale_b) + bias, as `torch._scaled_mm` has it: the scales are fp32, and multiply the sums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemmdb.problem import Problem

FP8 = ("fp8_e4m3", "fp8_e5m2")
"""torch.float8_e4m3fn and torch.float8_e5m2."""
SCALES = ("tensor", "row")
"""One number for each operand, or one for each row of A [M, 1] and each column of B [1, N]."""
OUTPUTS = ("bf16", "fp16", "fp32")
_ROWS, _COLUMNS = ("row", "row-padded"), ("col", "col-padded")


def objection(problem: Problem) -> str | None:
    """Why a problem is no scaled_mm, beside its dtypes, None when it is one."""
    if problem.scalars != "unit" or problem.fusion == "scale":
        return "its scales are those of the operands; it has no alpha, beta or other scale"
    if problem.scales not in SCALES:
        return f"scales are of one of the kinds {', '.join(SCALES)}, got {problem.scales!r}"
    if problem.out not in OUTPUTS:
        return f"the output is one of {', '.join(OUTPUTS)}, got {problem.out!r}"
    bias = problem.bias
    if bias is not None and (bias.kind != "1d" or bias.dtype not in OUTPUTS):
        return f"a bias is 1d and of one of {', '.join(OUTPUTS)}, got {bias.text}"
    return _unlike(problem)


def _unlike(problem: Problem) -> str | None:
    """Why operands of these layouts are not multiplied in fp8, None when they are.

    The matrix units of NVIDIA GPUs take fp8 with K along memory in both operands, and torch asks for that everywhere it
    compiles. A matrix with one row or column is in either order.
    """
    a, b = problem.a.layout.order, problem.b.layout.order
    if a not in _ROWS:
        return f"A lies by rows in memory, not {a}: the layout is nt"
    if b not in _COLUMNS and not (b in _ROWS and min(problem.k, problem.n) <= 1):
        return f"B lies by columns in memory, not {b}: the layout is nt"
    return None
