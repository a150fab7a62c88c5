"""Find the GEMMs of a post-grad graph and build each one's Query."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from gemmdb.errors import InputError
from gemmdb.inductor.lower.adapter import state
from gemmdb.inductor.match import activations, aten_calls, calls, epilogues, extract, int_mm_scale, linears
from gemmdb.inductor.match.extract import Gemm, two_operands
from gemmdb.inductor.match.fx import Unsupported, value
from gemmdb.inductor.match.linears import marked
from gemmdb.kernels.cublaslt import MATMUL_ACTIVATION

_UNCOVERED = {
    "aten.bmm.dtype": "bmm.dtype",
    "transformers.grouped_mm_fallback.default": "grouped_mm in a dtype that torch does not compile",
    "aten._scaled_grouped_mm_v2.default": "scaled_grouped_mm_v2, which this torch's Inductor leaves to ATen",
    "aten.mm.dtype": "mm.dtype",
    "aten._weight_int4pack_mm_for_cpu.default": "int4_mm",
    "aten._weight_int4pack_mm_with_scales_and_zeros.default": "int4_mm", "onednn.qlinear_pointwise.default": "qlinear",
    "onednn.qlinear_pointwise.tensor": "qlinear",
}  # fmt: skip
_FOREIGN_INT4 = re.compile(r"(mslk|fbgemm)\.\w*i4\w*_(rowwise|shuffled)")
"""Operators of other libraries for int4 weights in private layouts, such as torchao's default."""
MAX_NODES = 64
"""Most nodes before an operand that are looked at, to know whether it is a weight."""
_CONVOLUTIONS = ("aten.convolution.default", "mkldnn._convolution_pointwise.default")


def read(node: Any) -> Gemm | None:
    """Return the GEMM at `node`; None if gemmdb does not support it as a GEMM.

    Raises Unsupported if the key cannot express it (a dtype, rows of data-dependent length).
    """
    reader = _reader(node) if node.op == "call_function" else None
    if reader is None:
        return None
    try:
        gemm = reader(node)
    except InputError as error:
        raise Unsupported(str(error)) from error
    if gemm is None or gemm.b is None or gemm.query.device.kind != "cpu" or not _is_activation(gemm.b):
        return gemm  # On a GPU no kernel needs a weight.
    return replace(gemm, query=replace(gemm.query, computed=True))


def uncovered(node: Any) -> str | None:
    """Return the name of a GEMM that gemmdb recognizes but does not support, None for anything else."""
    target = str(node.target)
    if target in _UNCOVERED:
        return _UNCOVERED[target]
    if target == "aten.baddbmm.default":
        return "baddbmm" if _adds(node) or _has_symbolic_batch(node) else None
    if target == "aten.bmm.default" and _has_symbolic_batch(node) and marked(node, node.args[0]) is None:
        return "bmm"
    if _FOREIGN_INT4.match(target):
        return f"int4_mm of {target.partition('.')[0]}"
    if getattr(node.target, "__name__", "") == "mm_plus_mm":
        return "mm_plus_mm"
    if target in _CONVOLUTIONS:
        weight = [arg for arg in node.args if isinstance(arg, torch.fx.Node)][1]
        shape = value(weight).shape
        if len(shape) >= 3 and all(size == 1 for size in shape[2:]):
            return "conv1x1"
    return None


def _is_activation(operand: Any) -> bool:
    """Whether an operand cannot be a weight: it comes from a GEMM, maybe through other operators, or from inputs of the
    program alone."""
    found = [operand]
    for node in found:  # It grows.
        if node.op == "call_function" and _reader(node) is not None:
            return True
        new = [one for one in node.all_input_nodes if one not in found]
        found += new[: MAX_NODES - len(found)]
    given = [node for node in found if node.op in ("placeholder", "get_attr")]
    return len(given) > 0 and len(found) < MAX_NODES and not any(map(state.may_be_weight, given))


def _reader(node: Any) -> Callable[[Any], Gemm | None] | None:
    target = node.target
    if (reader := _READERS.get(str(target))) is not None:
        return reader
    # Inductor's lowering patterns use partials of their handlers as targets: a oneDNN linear with its activation, or
    # the weight-only GEMM.
    match = linears.match(target)
    if match is None:
        return None
    if getattr(target, "__name__", "") == "woq_int8":
        return linears.weight_only
    if any(str(old.target) == "mkldnn._linear_pointwise.default" for old in match.nodes):
        return linears.fused_linear
    return None


def _mm(node: Any, op: str = "mm") -> Gemm | None:
    a, b = node.args[:2]
    # A bmm with one weight for the whole batch may also be a mixed GEMM.
    mixed = marked(node, a)
    if mixed is None and op == "bmm" and _has_symbolic_batch(node):
        raise Unsupported("a symbolic batch")
    return mixed or _with_library(two_operands(op, node, a, b, fusion=epilogues.fusion(node)), a, b)


def _with_library(gemm: Gemm | None, a: Any, b: Any) -> Gemm | None:
    """Return the GEMM of nodes `a` and `b` with what its query says of cuBLAS: the activation if that is the whole
    epilogue, and whether ATen splits K."""
    if gemm is None or gemm.query.problem.op not in MATMUL_ACTIVATION.ops:
        return gemm
    query = replace(
        gemm.query, activation=activations.name_of(gemm.node, gemm.query.problem),
        aten_splits=aten_calls.splits(gemm.query, value(a), value(b)),
    )  # fmt: skip
    return replace(gemm, query=query)


def _baddbmm(node: Any) -> Gemm | None:
    """Return a batched GEMM scaled only by alpha, such as attention scores. The scaling is free in library kernels and
    in gemmdb's. None if something is added: the library fuses the addition, and no batched GEMM was measured with
    it."""
    if _adds(node) or _has_symbolic_batch(node):
        return None
    return two_operands("bmm", node, *node.args[1:3], fusion=epilogues.fusion(node))


def _adds(node: Any) -> bool:
    """Whether a baddbmm adds its first argument, or its scaling is unknown."""
    return node.kwargs.get("beta", 1) != 0 or not isinstance(node.kwargs.get("alpha", 1), int | float)


def _has_symbolic_batch(node: Any) -> bool:
    """Whether a batched GEMM's batch size is not fixed. The key has one number, and no rule extends an answer to other
    batch sizes."""
    return extract.bounds(value(node).shape[0]) is not None


def _addmm(node: Any) -> Gemm | None:
    bias, a, b = node.args[:3]
    if (mixed := marked(node, a)) is not None:
        return mixed
    gemm = two_operands(
        "addmm", node, a, b, bias=extract.bias(value(bias), *map(extract.hint, value(node).shape)),
        scalars=extract.scalars(node.kwargs.get("alpha", 1), node.kwargs.get("beta", 1)),
        fusion=epilogues.fusion(node),
    )  # fmt: skip
    return _with_library(gemm, a, b)


def _int_mm(node: Any) -> Gemm | None:
    scaling = int_mm_scale.find(node)
    fusion, out = ("none", node) if scaling is None else ("scale", scaling.last)
    return two_operands("int_mm", node, *node.args[:2], fusion=fusion, out=extract.dtype_name(value(out).dtype))


def _scaled_mm(node: Any) -> Gemm | None:
    if not state.lowers(node.target):
        raise Unsupported("this torch's Inductor leaves it to ATen")
    return _of_call("scaled_mm", node, calls.scaled_fields)


def _of_call(op: str, node: Any, fields: Callable[[calls.Call], dict[str, Any]]) -> Gemm | None:
    call = calls.read(node.target, node.args, node.kwargs)
    return two_operands(op, node, call.a, call.b, call.fast, **fields(call), fusion=epilogues.fusion(node))


_grouped_mm = partial(_of_call, "grouped_mm", fields=calls.grouped_fields)


_READERS: dict[str, Callable[[Any], Gemm | None]] = {
    "aten.mm.default": _mm,
    "aten.bmm.default": partial(_mm, op="bmm"),
    "aten.baddbmm.default": _baddbmm,
    "aten.addmm.default": _addmm,
    "aten._int_mm.default": _int_mm,
    "aten._weight_int4pack_mm.default": linears.tiled_int4,
    "aten._scaled_mm.default": _scaled_mm,
    "aten._scaled_mm_v2.default": _scaled_mm,
    "aten._grouped_mm.default": _grouped_mm,
    "aten._scaled_grouped_mm.default": _grouped_mm,
    "gemmdb.mixed_mm.default": linears.mixed_op,
    "gemmdb.int4_mm.default": linears.int4_op,
    "mkl._mkl_linear": linears.mkl_linear,
    "mkl._mkl_linear.default": linears.mkl_linear,
    "mkldnn._linear_pointwise.default": linears.onednn_linear,
    "mkldnn._linear_pointwise.binary": linears.onednn_binary,
}
