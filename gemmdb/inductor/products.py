"""Which nodes of a post-grad graph are GEMMs, and the Query of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from gemmdb.errors import InputError
from gemmdb.inductor import epilogues, extract, fp8, ops
from gemmdb.inductor.adapter import guessing, state
from gemmdb.inductor.extract import Range, Unsupported, value
from gemmdb.operands import Bias, TensorInfo
from gemmdb.problem import Problem, Query

aten = torch.ops.aten
MARK = "gemmdb_mixed"
"""Key in the metadata `custom`: this product multiplies a cast int8 or uint8 weight. The value describes that weight as
[N, K], and what belongs to the product."""


@dataclass(frozen=True)
class Product:
    """One GEMM node: what to look up for it. `guessed`: a size comes out of data, and the problem has a guess at it."""

    node: Any
    query: Query
    guessed: bool = False


def product(node: Any) -> Product | None:
    """The GEMM of `node`, None if it is none that gemmdb steers.

    Raises Unsupported when the key cannot express it (a dtype, rows whose length comes out of data).
    """
    reader = _reader(node)
    if reader is None:
        return None
    try:
        return reader(node)
    except InputError as error:
        raise Unsupported(str(error)) from error


def uncovered(node: Any) -> str | None:
    """The name of a GEMM that gemmdb sees and does not steer, None for anything else."""
    name = _UNCOVERED.get(str(node.target))
    if name is not None:
        return name
    if str(node.target) == "aten.bmm.default" and _has_symbolic_batch(node):
        return "bmm"
    if getattr(node.target, "__name__", "") == "mm_plus_mm":
        return "mm_plus_mm"
    if str(node.target) in _CONVOLUTIONS:
        weight = [arg for arg in node.args if isinstance(arg, torch.fx.Node)][1]
        shape = value(weight).shape
        if len(shape) >= 3 and all(size == 1 for size in shape[2:]):
            return "conv1x1"
    return None


_UNCOVERED = {
    "aten.baddbmm.default": "baddbmm", "aten.bmm.dtype": "bmm.dtype", "aten._grouped_mm.default": "grouped_mm",
    "aten._scaled_grouped_mm.default": "scaled_grouped_mm", "aten._scaled_grouped_mm_v2.default": "scaled_grouped_mm",
    "aten.mm.dtype": "mm.dtype",
    "aten._weight_int4pack_mm_for_cpu.default": "int4_mm", "onednn.qlinear_pointwise.default": "qlinear",
    "onednn.qlinear_pointwise.tensor": "qlinear",
}  # fmt: skip
_CONVOLUTIONS = ("aten.convolution.default", "mkldnn._convolution_pointwise.default")


def _reader(node: Any) -> Callable[[Any], Product | None] | None:
    if node.op != "call_function":
        return None
    target = node.target
    if target is ops.register():
        return _mixed_op
    plain = _PLAIN.get(str(target))
    if plain is not None:
        return plain
    # Inductor's lowering patterns leave partials of their handlers as targets: an oneDNN linear with its activation,
    # or the weight-only product.
    match = _match(target)
    if match is None:
        return None
    if getattr(target, "__name__", "") == "woq_int8":
        return _weight_only
    if any(str(old.target) == "mkldnn._linear_pointwise.default" for old in match.nodes):
        return _fused_linear
    return None


def _match(target: Any) -> Any:
    arguments = getattr(target, "args", ())
    return arguments[0] if arguments and hasattr(arguments[0], "nodes") and hasattr(arguments[0], "pattern") else None


def _mm(node: Any) -> Product | None:
    a, b = node.args[:2]
    marked = _marked(node, a)
    if marked is not None:
        return marked
    rest = {"fusion": epilogues.fusion(node), "out": extract.dtype_name(value(node).dtype)}
    return _two_operands("mm", node, value(a), value(b), _constant(b), rest)


def _bmm(node: Any) -> Product | None:
    a, b = node.args[:2]
    # With one weight for the whole batch it may be a mixed product.
    marked = _marked(node, a)
    if marked is not None:
        return marked
    if _has_symbolic_batch(node):
        raise Unsupported("a symbolic batch")
    rest = {"fusion": epilogues.fusion(node), "out": extract.dtype_name(value(node).dtype)}
    return _two_operands("bmm", node, value(a), value(b), _constant(b), rest)


def _has_symbolic_batch(node: Any) -> bool:
    """Whether the number of matrices of a product of batches, which is no mixed product, is not fixed: the key has one
    number, and no rule says over which others it holds."""
    return extract.bounds(value(node).shape[0]) is not None and _marked(node, node.args[0]) is None


def _addmm(node: Any) -> Product | None:
    bias, a, b = node.args[:3]
    marked = _marked(node, a)
    if marked is not None:
        return marked
    m, n = (extract.hint(size) for size in value(node).shape)
    rest = {
        "bias": extract.bias(value(bias), m, n),
        "scalars": extract.scalars(node.kwargs.get("alpha", 1), node.kwargs.get("beta", 1)),
        "fusion": epilogues.fusion(node),
        "out": extract.dtype_name(value(node).dtype),
    }
    return _two_operands("addmm", node, value(a), value(b), _constant(b), rest)


def _int_mm(node: Any) -> Product | None:
    a, b = node.args[:2]
    scale = extract.scale_user(node)
    out, fusion = value(node), epilogues.fusion(node)
    if scale is not None:
        out, fusion = value(scale), "scale"
        after = extract.users(scale)
        if len(after) == 1 and after[0].target is torch.ops.prims.convert_element_type.default:
            out = value(after[0])
    elif fusion == "pointwise":
        fusion = "none"
    rest = {"fusion": fusion, "out": extract.dtype_name(out.dtype)}
    return _two_operands("int_mm", node, value(a), value(b), _constant(b), rest)


def _scaled_mm(node: Any) -> Product | None:
    if not state.lowers(node.target):
        raise Unsupported("this torch's Inductor leaves it to ATen")
    call = fp8.read(node.target, node.args, node.kwargs)
    rest = {
        "scales": fp8.kind(call),
        "bias": fp8.bias(call),
        "fusion": epilogues.fusion(node),
        "out": extract.dtype_name(value(node).dtype),
    }
    return _two_operands("scaled_mm", node, value(call.a), value(call.b), _constant(call.b), rest, call.fast)


def _two_operands(
    op: str, node: Any, a: Any, b: Any, constant: bool, rest: dict[str, Any], fast: bool = False
) -> Product | None:
    infos = extract.tensor(a), extract.tensor(b)
    numerics = replace(extract.numerics(infos[0].dtype, a.device.type), fast=fast)
    problem = Problem.from_tensors(op, *infos, constant=constant, numerics=numerics, **rest)
    return _product(node, problem, {"m": a.shape[-2], "n": b.shape[-1], "k": a.shape[-1]}, a.device)


def _mkl_linear(node: Any) -> Product | None:
    x, _, original, bias = node.args[:4]
    return _linear(node, x, value(original), bias, epilogues.fusion(node))


def _onednn_linear(node: Any) -> Product | None:
    x, weight, bias, attribute = node.args[:4]
    fusion = epilogues.fusion(node) if attribute == "none" else "pointwise"
    return _linear(node, x, value(weight), bias, fusion)


def _onednn_binary(node: Any) -> Product | None:
    x, _, weight, bias = node.args[:4]
    return _linear(node, x, value(weight), bias, "pointwise")


def _fused_linear(node: Any) -> Product | None:
    x, weight, bias = node.args[:3]
    for old in _match(node.target).nodes:
        marked = _marked(node, x, old)
        if marked is not None:
            return marked
    return _linear(node, x, value(weight), bias, "pointwise")


def _linear(node: Any, x: Any, weight: Any, bias: Any, fusion: str) -> Product | None:
    """A packed linear: constant [N, K] weight, 1-D bias. Packing erased the weight's own layout, so the key has the
    dense one that a linear's weight had before."""
    marked = _marked(node, x)
    if marked is not None:
        return marked
    x_val = value(x)
    n, k = (extract.hint(size) for size in weight.shape)
    a = extract.matrix(x_val)
    b = TensorInfo(a.dtype, (k, n), (1, k))
    rest: dict[str, Any] = {"fusion": fusion, "numerics": extract.numerics(a.dtype, "cpu"), "constant": True}
    if isinstance(bias, torch.fx.Node):
        rest["bias"] = extract.bias(value(bias), a.sizes[0], n)
    problem = Problem.from_tensors("addmm" if "bias" in rest else "mm", a, b, **rest)
    m = x_val.numel() // x_val.shape[-1] if x_val.dim() > 2 and k else x_val.shape[0]
    return _product(node, problem, {"m": m, "n": n, "k": k}, x_val.device)


def _weight_only(node: Any) -> Product | None:
    """Inductor's own pattern: x [.., K], int8 weight [N, K], scale [N]."""
    x, weight = value(node.kwargs["x"]), value(node.kwargs["weight"])
    return _mixed(node, x, extract.tensor(weight), _constant(node.kwargs["weight"]), "scale", None)


def _mixed_op(node: Any) -> Product | None:
    x, w = value(node.args[0]), value(node.args[1])
    info = extract.tensor(w)
    stored = TensorInfo(info.dtype, info.sizes[::-1], info.strides[::-1], info.offset)
    # What the joint stage saw: the same question must be asked twice, and a bias is an addition of its own by now.
    mark = node.meta.get("custom", {}).get(MARK, {})
    fusion = "scale" if len(node.args) > 2 else mark.get("fusion", "none")
    constant = mark.get("constant", _constant(node.args[1]))
    bias = Bias.parse(mark["bias"]) if mark.get("bias") else None
    return _mixed(node, x, stored, constant, fusion, bias)


def _marked(node: Any, x: Any, old: Any = None) -> Product | None:
    """A mixed product that stayed as Inductor has it; its mark says what the weight was before it was cast. None
    without a mark, or with that of another product: metadata is handed on to all that replaces a node."""
    mark = (old or node).meta.get("custom", {}).get(MARK)
    if mark is None or tuple(mark["sizes"]) != (extract.hint(value(node).shape[-1]), extract.hint(value(x).shape[-1])):
        return None
    info = TensorInfo(mark["dtype"], tuple(mark["sizes"]), tuple(mark["strides"]), mark["offset"])
    bias = Bias.parse(mark["bias"]) if mark["bias"] else None
    return _mixed(node, value(x), info, mark["constant"], mark["fusion"], bias)


def _mixed(node: Any, x: Any, weight: TensorInfo, constant: bool, fusion: str, bias: Bias | None) -> Product | None:
    """The product of `x` [.., K] with a weight that is described as [N, K]."""
    a = extract.matrix(x)
    b = TensorInfo(weight.dtype, weight.sizes[::-1], weight.strides[::-1], weight.offset)
    rest = {"numerics": extract.numerics(a.dtype, x.device.type), "constant": constant, "fusion": fusion, "bias": bias}
    problem = Problem.from_tensors("mixed_mm", a, b, **rest)
    m = x.numel() // x.shape[-1] if x.dim() > 2 else x.shape[0]
    # Not N of `weight`, which has hints.
    return _product(node, problem, {"m": m, "n": value(node).shape[-1], "k": x.shape[-1]}, x.device)


def _product(node: Any, problem: Problem, sizes: dict[str, Any], device: Any) -> Product | None:
    if problem.empty:
        # Nothing is multiplied; Inductor folds it or fills.
        return None
    ranges: dict[str, Range] = {}
    for name, size in sizes.items():
        found = extract.bounds(size)
        if found is not None:
            ranges[name] = found
    guessed = any(guessing.from_data(size) for size in sizes.values())
    return Product(node, Query(problem, extract.device(device), ranges), guessed)


def _constant(node: Any) -> bool:
    """Whether `node` is a constant of the graph, or a view of one."""
    while node.op == "call_function" and node.target in (aten.permute.default, aten.t.default, *extract.VIEWS):
        node = node.args[0]
    return bool(node.op == "get_attr")


_PLAIN: dict[str, Callable[[Any], Product | None]] = {
    "aten.mm.default": _mm,
    "aten.bmm.default": _bmm,
    "aten.addmm.default": _addmm,
    "aten._int_mm.default": _int_mm,
    "aten._scaled_mm.default": _scaled_mm,
    "aten._scaled_mm_v2.default": _scaled_mm,
    "mkl._mkl_linear": _mkl_linear,
    "mkl._mkl_linear.default": _mkl_linear,
    "mkldnn._linear_pointwise.default": _onednn_linear,
    "mkldnn._linear_pointwise.binary": _onednn_binary,
}
