"""Triton statements that follow a GEMM: alpha, scales, bias, the representative of its epilogue (`representative`), and
the store."""

from __future__ import annotations

from gemmdb.generators.measure.literals import SCALARS
from gemmdb.key.epilogue import Epilogue
from gemmdb.key.operands import Bias
from gemmdb.key.problem import Problem
from gemmdb.key.representatives import head

POINTERS = {"bf16": "*bf16", "fp16": "*fp16", "fp32": "*fp32", "fp64": "*fp64", "int8": "*i8", "uint8": "*u8",
            "int32": "*i32", "fp8_e4m3": "*fp8e4nv", "fp8_e5m2": "*fp8e5"}  # fmt: skip
"""Triton's pointer type for elements of a dtype."""


def out_type(problem: Problem) -> str:
    """Return the pointer type of the output."""
    own = problem.epilogue
    return POINTERS[own.stored if own and own.stored else problem.out]


def args(problem: Problem) -> list[tuple[str, str]]:
    """Return the (name, type) arguments of `statements` besides the output and the sizes."""
    bias, own = _bias(problem), problem.epilogue
    found = [] if bias is None else [("bias", POINTERS[bias.dtype])]
    if problem.fusion == "scale":
        found.append(("scale", POINTERS[problem.out] if problem.out in ("bf16", "fp16") else "*fp32"))
    if problem.scales:
        found += [("scale_a", "*fp32"), ("scale_b", "*fp32")]
    names = [] if own is None else [*_reads(own), *(["kept"] if own.kept else [])]
    return [*found, *((name, POINTERS[problem.out]) for name in names)]


def statements(problem: Problem, indices: tuple[str, ...], value: str, mask: str, place: str = "") -> list[str]:
    """Return statements that apply the problem's alpha, scales, bias and elementwise epilogue to `value` and store it
    at `place` of the output, by default where its order puts it.

    The scale is one value per column, in the output's dtype, as in weight-only and dynamic quantization. The scales of
    fp8 operands are one value each, or one per row and one per column.
    """
    (m, n), (alpha, beta), bias, lines = indices, SCALARS[problem.scalars], _bias(problem), []
    if problem.fusion != "none" or problem.bias is not None or problem.scales:
        lines.append(f"result = {value}.to(tl.float32)")
        value = "result"
    if alpha != 1:
        lines.append(f"result = result * {alpha}")
    if problem.fusion == "scale":
        lines.append(f"result = result * tl.load(scale + {n}, mask={n} < N, other=0).to(tl.float32)")
    if problem.scales == "tensor":
        lines.append("result = result * tl.load(scale_a) * tl.load(scale_b)")
    elif problem.scales == "row" and not problem.spec.grouped:  # The grouped template has already applied its scales.
        lines.append(f"result = result * tl.load(scale_a + {m}, mask={m} < M, other=0)")
        lines.append(f"result = result * tl.load(scale_b + {n}, mask={n} < N, other=0)")
    if bias is not None:
        where = {"1d": f"{n}", "full": f"{m} * N + {n}", "column": f"{m}"}[bias.kind]
        times = "" if beta == 1 else f" * {beta}"
        lines.append(f"result = result + tl.load(bias + {where}, mask={mask}, other=0).to(tl.float32){times}")
    if problem.epilogue is not None:
        lines += _elementwise(problem.epilogue, indices, mask)
    place = place or _place(problem, indices)
    lines.append(f"tl.store(out + {place}, {value}.to(out.dtype.element_ty), mask={mask})")
    return lines


def _bias(problem: Problem) -> Bias | None:
    # A bias with beta zero is not read: it may contain NaN.
    return None if problem.scalars == "beta0" else problem.bias


def _reads(own: Epilogue) -> list[str]:
    return [f"read{place}" for place in range(1, own.reads + 1)]


def _elementwise(own: Epilogue, indices: tuple[str, ...], mask: str) -> list[str]:
    """Return statements that store the GEMM, `result`, if it is kept, and apply the epilogue to it."""
    at = "{}.to(tl.int64) * N + {}".format(*indices)
    loads = [f"tl.load({name} + {at}, mask={mask}, other=0).to(tl.float32)" for name in _reads(own)]
    lines = [f"tl.store(kept + {at}, result.to(kept.dtype.element_ty), mask={mask})"] if own.kept else []
    if own.arithmetic == "math" and loads:
        lines += [f"gate = {loads.pop(0)}", "result = result * (gate / (1.0 + tl.exp(-gate)))"]
    elif own.arithmetic == "math":
        lines.append("result = result * 0.5 * (1.0 + tl.erf(result * 0.7071067811865476))")
    elif not loads:
        lines.append("result = tl.maximum(result, 0.0)")
    return [*lines, *(f"result = result + {load}" for load in loads)]


def _place(problem: Problem, indices: tuple[str, ...]) -> str:
    """Return the output element at `indices` (rows, columns) of one [M, N] result, by its epilogue's order."""
    m, n = indices
    order = problem.epilogue.order if problem.epilogue else "own"
    if order == "transposed":
        return f"{n}.to(tl.int64) * M + {m}"
    if order == "permuted":
        size = head(problem.n)
        return f"({n} // {size}).to(tl.int64) * M * {size} + {m} * {size} + {n} % {size}"
    return f"{m}.to(tl.int64) * N + {n}"
