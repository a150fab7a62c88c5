"""What a Problem may be made of: the sizes, dtypes, layouts, biases, scales and numerics that each op accepts."""

from __future__ import annotations

from gemmdb.errors import InputError
from gemmdb.key import epilogue
from gemmdb.key.fields import Fields
from gemmdb.key.layout import ITEM_SIZES, item_size
from gemmdb.key.operands import BIAS_KINDS
from gemmdb.key.ops import OPS, Op, named

SCALAR_CLASSES = ("unit", "beta0", "general")
FUSIONS = ("none", "scale", "pointwise")
"""The fusion contexts, without the further classes of epilogues that `epilogue.Epilogue` describes."""
LARGEST_SIZE = 2**31 - 1


def check(fields: Fields) -> None:
    """Raise InputError for an invalid Problem. The message names the field and its valid values."""
    op = named(fields.op)
    _check_fields(fields, op)
    _check_batch(fields, op)
    _check_dtypes(fields, op)
    _check_scales(fields, op)
    _check_groups(fields, op)
    if rejected := op.rejection(fields):
        raise InputError(f"{op.name}: {rejected}")


def _check_fields(fields: Fields, op: Op) -> None:
    for name in ("m", "n", "k", "batch", "groups"):
        size = getattr(fields, name)
        if type(size) is not int or not 0 <= size <= LARGEST_SIZE:
            raise InputError(f"{op.name}: {name} must be an integer from 0 to {LARGEST_SIZE}, got {size!r}")
    if fields.scalars not in SCALAR_CLASSES:
        raise InputError(f"{op.name}: no such scalar class: {fields.scalars!r}; known: {', '.join(SCALAR_CLASSES)}")
    if fields.fusion not in FUSIONS:
        _check_epilogue(fields, op)
    if op.bias != "maybe" and (op.bias == "always") != (fields.bias is not None):
        biased = " and ".join(other.name for other in OPS.values() if other.bias == "always")
        raise InputError(f"{op.name}: {biased} takes a bias and mm takes none; bias kinds: {', '.join(BIAS_KINDS)}")


def _check_epilogue(fields: Fields, op: Op) -> None:
    if not isinstance(fields.fusion, str):
        raise InputError(f"{op.name}: no such fusion: {fields.fusion!r}")
    stored = epilogue.parse(fields.fusion).stored
    if stored and ITEM_SIZES[stored] == item_size(fields.out):
        raise InputError(f"{op.name}: a result of the size of {fields.out} is not named: {fields.fusion!r}")


def _check_batch(fields: Fields, op: Op) -> None:
    if not op.batched and fields.batch != 1:
        batched = " and ".join(other.name for other in OPS.values() if other.batched)
        raise InputError(f"{op.name}: only {batched} takes a batch, got {fields.batch}")
    if fields.batch <= 1 and not op.grouped and (fields.a.layout.batch or fields.b.layout.batch):
        raise InputError(f"{op.name}: the layouts name a batch, and the problem has a single matrix")


def _check_dtypes(fields: Fields, op: Op) -> None:
    a, b = fields.a.dtype, fields.b.dtype
    item_size(fields.out)
    if not op.multiplies(a, b):
        with_b = f" by {', '.join(op.b)}" if op.b else ""
        raise InputError(f"{op.name}: cannot multiply {a} by {b}; it multiplies {', '.join(op.a)}{with_b}")
    if fields.numerics.fp32 != "ieee" and a != "fp32":
        raise InputError(f"{op.name}: TF32 applies to fp32 inputs, not {a}")


def _check_scales(fields: Fields, op: Op) -> None:
    if fields.fusion == "scale" and not op.scale:
        raise InputError(f"{op.name}: no scale can be fused into {op.words}")
    if fields.int4 is not None and not op.dequantises:
        raise InputError(f"{op.name}: an int4 weight has groups of scales, and no other weight has")
    if fields.a.dtype not in op.scaled and (fields.scales or fields.numerics.fast):
        scaled = " and ".join(other.name for other in OPS.values() if other.scaled)
        raise InputError(f"{op.name}: only {scaled} of fp8 have scales of their operands and a fast accumulation")


def _check_groups(fields: Fields, op: Op) -> None:
    if not op.grouped and (fields.groups or fields.ragged):
        grouped = " and ".join(other.name for other in OPS.values() if other.grouped)
        raise InputError(f"{op.name}: only {grouped} has groups of a ragged size")
