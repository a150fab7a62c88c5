"""What a Problem may be made of: the sizes, dtypes, layouts, biases, scales and numerics that each op accepts."""

from __future__ import annotations

from gemmdb.errors import InputError, choices
from gemmdb.key import epilogue
from gemmdb.key.layout import ITEM_SIZES, item_size
from gemmdb.key.operands import BIAS_KINDS
from gemmdb.key.ops import OPS, Fields, Op, named
from gemmdb.rejected import Rejected

SCALAR_CLASSES = ("unit", "beta0", "general")
FUSIONS = ("none", "scale", "pointwise")
"""The fusion contexts, without the further classes of epilogues that `epilogue.Epilogue` describes."""
LARGEST_SIZE = 2**31 - 1


def check(fields: Fields) -> None:
    """Raise InputError for an invalid Problem. The message names the field and its valid values."""
    op = named(fields.op)
    if rejected := _sizes(fields, op) or _words(fields, op) or _dtypes(fields, op) or op.rejection(fields):
        raise InputError(f"{op.name}: {rejected}")


def _sizes(fields: Fields, op: Op) -> Rejected | None:
    for name in ("m", "n", "k", "batch", "groups"):
        size = getattr(fields, name)
        if type(size) is not int or not 0 <= size <= LARGEST_SIZE:
            return Rejected(f"{name} must be an integer from 0 to {LARGEST_SIZE}, got {size!r}")
    if not op.batched and fields.batch != 1:
        return Rejected(f"only {_ops('batched')} takes a batch, got {fields.batch}")
    if fields.batch <= 1 and not op.grouped and (fields.a.layout.batch or fields.b.layout.batch):
        return Rejected("the layouts name a batch, and the problem has a single matrix")
    if not op.grouped and (fields.groups or fields.ragged):
        return Rejected(f"only {_ops('grouped')} has groups of a ragged size")
    return None


def _words(fields: Fields, op: Op) -> Rejected | None:
    if fields.scalars not in SCALAR_CLASSES:
        return Rejected(f"no such scalar class: {fields.scalars!r}; {choices(fields.scalars, SCALAR_CLASSES)}")
    if not isinstance(fields.fusion, str):
        return Rejected(f"no such fusion: {fields.fusion!r}")
    if fields.fusion == "scale" and not op.scale:
        return Rejected(f"no scale can be fused into {op.words}")
    stored = "" if fields.fusion in FUSIONS else epilogue.parse(fields.fusion).stored
    if stored and ITEM_SIZES[stored] == item_size(fields.out):
        return Rejected(f"a result of the size of {fields.out} is not named: {fields.fusion!r}")
    if op.bias != "maybe" and (op.bias == "always") != (fields.bias is not None):
        biased = " and ".join(other.name for other in OPS.values() if other.bias == "always")
        return Rejected(f"{biased} takes a bias and mm takes none; bias kinds: {', '.join(BIAS_KINDS)}")
    return None


def _dtypes(fields: Fields, op: Op) -> Rejected | None:
    a, b = fields.a.dtype, fields.b.dtype
    item_size(fields.out)
    if not op.multiplies(a, b):
        with_b = f" by {', '.join(op.b)}" if op.b else ""
        return Rejected(f"cannot multiply {a} by {b}; it multiplies {', '.join(op.a)}{with_b}")
    if fields.numerics.fp32 != "ieee" and a != "fp32":
        return Rejected(f"TF32 applies to fp32 inputs, not {a}")
    if fields.int4 is not None and not op.dequantises:
        return Rejected("only the weight of a mixed_mm has groups of scales")
    if a not in op.scaled and (fields.scales or fields.numerics.fast):
        return Rejected(f"only {_ops('scaled')} of fp8 have scales of their operands and a fast accumulation")
    return None


def _ops(trait: str) -> str:
    return " and ".join(op.name for op in OPS.values() if getattr(op, trait))
