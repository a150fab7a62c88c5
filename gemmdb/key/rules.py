"""What a Problem may be made of: which sizes, dtypes, layouts, biases, scales and numerics are a product of its op."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmdb.errors import InputError
from gemmdb.key import fp8
from gemmdb.key.layout import ITEM_SIZES
from gemmdb.key.operands import BIAS_KINDS

if TYPE_CHECKING:
    from gemmdb.key.problem import Problem

OPS = ("mm", "addmm", "int_mm", "mixed_mm", "bmm", "scaled_mm")
FLOATS = ("bf16", "fp16", "fp32", "fp64")
WEIGHT_DTYPES = ("int8", "uint8")
SCALAR_CLASSES = ("unit", "beta0", "general")
FUSIONS = ("none", "scale", "pointwise")
LARGEST_SIZE = 2**31 - 1


def check(problem: Problem) -> None:
    """Raise InputError, with the field and what it may be, for what is no Problem."""
    _check_fields(problem)
    _check_batch(problem)
    _check_dtypes(problem)
    _check_scales(problem)


def _check_fields(problem: Problem) -> None:
    op = problem.op
    if op not in OPS:
        raise InputError(f"unknown op {op!r}; known: {', '.join(OPS)}")
    for name in ("m", "n", "k", "batch"):
        size = getattr(problem, name)
        if type(size) is not int or not 0 <= size <= LARGEST_SIZE:
            raise InputError(f"{op}: {name} must be an integer from 0 to {LARGEST_SIZE}, got {size!r}")
    if problem.scalars not in SCALAR_CLASSES or problem.fusion not in FUSIONS:
        raise InputError(f"{op}: no such scalar class or fusion: {problem.scalars!r}, {problem.fusion!r}")
    if (op == "addmm") != (problem.bias is not None) and op not in ("mixed_mm", "scaled_mm"):
        raise InputError(f"{op}: addmm takes a bias and mm takes none; bias kinds: {', '.join(BIAS_KINDS)}")


def _check_batch(problem: Problem) -> None:
    op, batch = problem.op, problem.batch
    if op == "bmm":
        if problem.fusion == "scale":
            raise InputError("bmm: no scale belongs to a product of batches")
    elif batch != 1:
        raise InputError(f"{op}: only bmm takes a batch, got {batch}")
    if batch <= 1 and (problem.a.layout.batch or problem.b.layout.batch):
        raise InputError(f"{op}: a single matrix lies in no batch")


def _check_dtypes(problem: Problem) -> None:
    op, a, b = problem.op, problem.a.dtype, problem.b.dtype
    if problem.out not in ITEM_SIZES:
        raise InputError(f"unknown dtype {problem.out!r}; known: {', '.join(ITEM_SIZES)}")
    if op in ("mm", "addmm", "bmm"):
        fits = a in FLOATS and a == b
    elif op == "int_mm":
        fits = a == b == "int8"
    elif op == "scaled_mm":
        fits = a in fp8.FP8 and b in fp8.FP8
    else:
        fits = a in ("bf16", "fp16") and b in WEIGHT_DTYPES
    if not fits:
        known = f"; it multiplies {' and '.join(fp8.FP8)}" if op == "scaled_mm" else ""
        raise InputError(f"{op}: cannot multiply {a} by {b}{known}")
    if problem.numerics.fp32 != "ieee" and a != "fp32":
        raise InputError(f"{op}: TF32 applies to fp32 inputs, not {a}")


def _check_scales(problem: Problem) -> None:
    if problem.op != "scaled_mm":
        if problem.scales or problem.numerics.fast:
            raise InputError(f"{problem.op}: only scaled_mm has scales of its operands and a fast accumulation")
        return
    if problem.scalars != "unit" or problem.fusion == "scale":
        raise InputError("scaled_mm: its scales are those of the operands; it has no alpha, beta or other scale")
    reason = fp8.unlike_rest(problem.scales, problem.out, problem.bias)
    reason = reason or fp8.unlike_operands(problem.a.layout, problem.b.layout, (problem.k, problem.n))
    if reason:
        raise InputError(f"scaled_mm: {reason}")
