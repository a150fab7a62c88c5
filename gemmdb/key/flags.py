"""Flags: a GEMM with dense operands as the command line, shapes files and `Problem.gemm` describe it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypedDict

from gemmdb.errors import ArgumentError, InputError, choices, unknown_argument
from gemmdb.key import int4
from gemmdb.key.layout import contiguous, dtype_name, item_size
from gemmdb.key.operands import Operand, default_numerics, dense_bias
from gemmdb.key.ops import Op, named

LAYOUTS = ("nn", "nt", "tn", "tt")


class Flags(TypedDict, total=False):
    """What describes a GEMM beside its op and M, N and K: `Problem.gemm` says what each means. None stands for the
    default."""

    dtype: str | None
    weight_dtype: str | None
    out_dtype: str | None
    layout: str
    bias: str | None
    fusion: str
    tf32: bool
    constant_weight: bool
    batch: int
    interleaved: str
    scales: str | None
    fast_accum: bool
    groups: int | None
    ragged: str | None
    group: int | None
    zeros: str | None
    packing: str | None


def fields(op: str, m: int, n: int, k: int, flags: Flags) -> dict[str, Any]:
    """The fields of the Problem that the flags describe. Raises InputError."""
    if unknown := flags.keys() - Flags.__annotations__:
        if unknown & {"device", "arch", "l2"}:
            raise ArgumentError(f"Problem.gemm takes no {min(unknown)!r}; gemmdb.lookup takes the device and l2")
        raise unknown_argument("Problem.gemm", min(unknown), Flags.__annotations__)
    spec, layout, batch = named(op), flags.get("layout", "nt"), flags.get("batch", 1)
    if layout not in LAYOUTS:
        raise InputError(f"unknown layout {layout!r}; {choices(layout, LAYOUTS)}")
    dtype, weight_dtype = spec.dtypes(_name(flags.get("dtype")), _name(flags.get("weight_dtype")))
    own = _int4(spec, dtype, weight_dtype, flags)
    for name in (dtype, *((weight_dtype,) if own is None else ())):
        item_size(name)
    groups, ragged = flags.get("groups"), flags.get("ragged")
    for name, size in (("m", m), ("n", n), ("k", k), ("batch", batch), ("groups", groups or 0)):
        if type(size) is not int or size < 0:
            raise InputError(f"{op}: {name} must be an integer of at least 0, got {size!r}")
    if spec.grouped:
        groups, ragged = 8 if groups is None else groups, ragged or "m"
    scaled, scales = dtype in spec.scaled, flags.get("scales")
    if scaled and scales is None:
        scales = "row" if spec.grouped else "tensor"
    fusion = flags.get("fusion", "none")
    out = _name(flags.get("out_dtype")) or spec.default_out(dtype, fusion)
    bias = flags.get("bias") or ("1d" if spec.bias == "always" else "none")
    numerics = replace(default_numerics(dtype, flags.get("tf32", False)), fast=flags.get("fast_accum", False))
    a, b = _layouts(spec, (m, n, k), groups if ragged == "m" else None, (dtype, weight_dtype), flags)
    return {
        "op": op, "m": m, "n": n, "k": k, "a": a, "b": b, "out": out,
        "bias": dense_bias(bias, m, n, out if scaled else dtype), "fusion": fusion, "numerics": numerics,
        "constant": flags.get("constant_weight", False), "batch": batch, "scales": scales or "", "groups": groups or 0,
        "ragged": ragged or "", "int4": own,
    }  # fmt: skip


def _name(dtype: str | None) -> str | None:
    return None if dtype is None else dtype_name(dtype)


def _int4(spec: Op, dtype: str, weight_dtype: str, flags: Flags) -> int4.Int4Format | None:
    group, zeros, packing = flags.get("group"), flags.get("zeros"), flags.get("packing")
    if weight_dtype == int4.FP4:
        packing = packing or int4.MXFP4
    elif weight_dtype != int4.INT4:
        if not _of_groups(flags):
            return None
        if not spec.dequantises:
            raise InputError(f"{spec.name}: only the weight of a mixed_mm has groups, zero points and a packing")
        packing = packing or int4.BYTE
    layout = flags.get("layout", "nt")
    if layout[1] != "t":
        raise InputError(f"{spec.name}: a weight with groups is [N, K]: the layout is nt or tt, not {layout}")
    return int4.default(dtype, group, _name(zeros), packing)


def _of_groups(flags: Flags) -> bool:
    """Whether the flags say how a weight is scaled by groups."""
    return any(value is not None for value in (flags.get("group"), flags.get("zeros"), flags.get("packing")))


def _layouts(
    spec: Op, sizes: tuple[int, int, int], weights: int | None, dtypes: tuple[str, str], flags: Flags
) -> tuple[Operand, Operand]:
    """A and B. `weights`: how many matrices B has if the groups of a grouped_mm divide M, else None."""
    (m, n, k), (dtype, weight_dtype), layout = sizes, dtypes, flags.get("layout", "nt")
    beside = flags.get("interleaved", "")
    if beside not in ("", "a", "b", "ab") or (beside and not spec.batched):
        raise InputError(f"{spec.name}: a, b or ab of a bmm may be interleaved, got {beside!r}")
    batch = flags.get("batch", 1) if spec.batched else None
    a = Operand(dtype, contiguous(m, k, dtype, layout[0] == "t", batch, "a" in beside))
    if weight_dtype in (int4.INT4, int4.FP4) or _of_groups(flags):
        return a, int4.WEIGHTS.get(weight_dtype, int4.WEIGHT)
    several = batch if weights is None else weights
    return a, Operand(weight_dtype, contiguous(k, n, weight_dtype, layout[1] == "t", several, "b" in beside))
