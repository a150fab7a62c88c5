"""What a Problem may be made of: the sizes, dtypes, layouts, biases, scales and numerics that each op accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmdb.errors import InputError
from gemmdb.key import epilogue
from gemmdb.key.layout import ITEM_SIZES, item_size
from gemmdb.key.operands import BIAS_KINDS
from gemmdb.key.ops import OPS, Op, named

if TYPE_CHECKING:
    from gemmdb.key.problem import Problem

SCALAR_CLASSES = ("unit", "beta0", "general")
FUSIONS = ("none", "scale", "pointwise")
"""The fusion contexts, without the further classes of epilogues that `epilogue.Epilogue` describes."""
LARGEST_SIZE = 2**31 - 1


def check(problem: Problem) -> None:
    """Raise InputError for an invalid Problem. The message names the field and its valid values."""
    op = named(problem.op)
    _check_fields(problem, op)
    _check_batch(problem, op)
    _check_dtypes(problem, op)
    _check_scales(problem, op)
    _check_groups(problem, op)
    if reason := op.reason(problem):
        raise InputError(f"{op.name}: {reason}")


def _check_fields(problem: Problem, op: Op) -> None:
    for name in ("m", "n", "k", "batch", "groups"):
        size = getattr(problem, name)
        if type(size) is not int or not 0 <= size <= LARGEST_SIZE:
            raise InputError(f"{op.name}: {name} must be an integer from 0 to {LARGEST_SIZE}, got {size!r}")
    if problem.scalars not in SCALAR_CLASSES:
        raise InputError(f"{op.name}: no such scalar class: {problem.scalars!r}; known: {', '.join(SCALAR_CLASSES)}")
    if problem.fusion not in FUSIONS:
        _check_epilogue(problem, op)
    if op.bias != "maybe" and (op.bias == "always") != (problem.bias is not None):
        biased = " and ".join(other.name for other in OPS.values() if other.bias == "always")
        raise InputError(f"{op.name}: {biased} takes a bias and mm takes none; bias kinds: {', '.join(BIAS_KINDS)}")


def _check_epilogue(problem: Problem, op: Op) -> None:
    if not isinstance(problem.fusion, str):
        raise InputError(f"{op.name}: no such fusion: {problem.fusion!r}")
    stored = epilogue.parse(problem.fusion).stored
    if stored and ITEM_SIZES[stored] == item_size(problem.out):
        raise InputError(f"{op.name}: a result of the size of {problem.out} is not named: {problem.fusion!r}")


def _check_batch(problem: Problem, op: Op) -> None:
    if not op.batched and problem.batch != 1:
        batched = " and ".join(other.name for other in OPS.values() if other.batched)
        raise InputError(f"{op.name}: only {batched} takes a batch, got {problem.batch}")
    if problem.batch <= 1 and not op.grouped and (problem.a.layout.batch or problem.b.layout.batch):
        raise InputError(f"{op.name}: the layouts name a batch, and the problem has a single matrix")


def _check_dtypes(problem: Problem, op: Op) -> None:
    a, b = problem.a.dtype, problem.b.dtype
    item_size(problem.out)
    if not op.multiplies(a, b):
        with_b = f" by {', '.join(op.b)}" if op.b else ""
        raise InputError(f"{op.name}: cannot multiply {a} by {b}; it multiplies {', '.join(op.a)}{with_b}")
    if problem.numerics.fp32 != "ieee" and a != "fp32":
        raise InputError(f"{op.name}: TF32 applies to fp32 inputs, not {a}")


def _check_scales(problem: Problem, op: Op) -> None:
    if problem.fusion == "scale" and not op.scale:
        raise InputError(f"{op.name}: no scale can be fused into {op.words}")
    if problem.int4 is not None and not op.dequantises:
        raise InputError(f"{op.name}: an int4 weight has groups of scales, and no other weight has")
    if not problem.scaled and (problem.scales or problem.numerics.fast):
        scaled = " and ".join(other.name for other in OPS.values() if other.scaled)
        raise InputError(f"{op.name}: only {scaled} of fp8 have scales of their operands and a fast accumulation")


def _check_groups(problem: Problem, op: Op) -> None:
    if not op.grouped and (problem.groups or problem.ragged):
        grouped = " and ".join(other.name for other in OPS.values() if other.grouped)
        raise InputError(f"{op.name}: only {grouped} has groups of a ragged size")
