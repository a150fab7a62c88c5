"""Match linears of a post-grad graph with a packed, 8-bit or 4-bit weight: MKL and oneDNN on a CPU, Inductor's
weight-only pattern, ATen's GEMM for a tiled int4 weight, `gemmdb::mixed_mm`, `gemmdb::int4_mm`, and GEMMs with a mark
from the joint stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gemmdb.inductor.match import epilogues, extract, fx, mixed, ops
from gemmdb.inductor.match.extract import WEIGHT_MARK, Gemm
from gemmdb.inductor.match.fx import Unsupported, value
from gemmdb.key.int4 import INT4, TILED, WEIGHT, WEIGHTS, WORDS, Int4Format
from gemmdb.key.operands import Bias, Operand, TensorInfo
from gemmdb.key.problem import Problem

TILED_MM = torch.ops.aten._weight_int4pack_mm.default
Weight = tuple[Operand, Int4Format]
"""A weight with a scale for each group, as the key has it."""
_PACKINGS = {inner: packing for packing, inner in TILED.items()}


def weight_only(node: Any) -> Gemm | None:
    """Inductor's own pattern: x [.., K], int8 weight [N, K], scale [N]."""
    x, weight = node.kwargs["x"], node.kwargs["weight"]
    return _int8(node, value(x), extract.tensor(value(weight)), extract.is_constant(weight), "scale", _bias_of(node))


def mixed_op(node: Any) -> Gemm | None:
    """`gemmdb::mixed_mm`: x [.., K], the stored weight, and the scale if any."""
    x, w = value(node.args[0]), node.args[1]
    # The mark records the joint stage's view. Both stages must look up the same Problem, and the bias is a separate
    # addition by now.
    mark = node.meta.get("custom", {}).get(WEIGHT_MARK, {})
    fusion = "scale" if len(node.args) > 2 else mark.get("fusion", "none")
    constant = mark.get("constant", extract.is_constant(w))
    return _int8(node, x, _transposed(extract.tensor(value(w))), constant, fusion, _bias_of(node))


def _bias_of(node: Any) -> Bias | None:
    """Return the bias that the joint stage saw after a GEMM."""
    text = node.meta.get("custom", {}).get(WEIGHT_MARK, {}).get("bias")
    return Bias.parse(text) if text else None


def int4_op(node: Any) -> Gemm | None:
    """`gemmdb::int4_mm`: x [M, K], the tensors of the weight, group size, packing, and the order of columns if any."""
    x, packed, scale, zeros, size, packing = node.args[:6]
    mark = node.meta.get("custom", {}).get(WEIGHT_MARK, {})
    if "groups" in mark:
        return _marked_int4(node, x, mark)
    starts = scale if packing in TILED else zeros
    kind = INT4 if packing in WORDS else "none" if starts is None else _zeros_dtype(value(starts).dtype, packing)
    dtype = ops.weight_dtype(value(packed).dtype, packing)
    weight = WEIGHTS[dtype], Int4Format(size, kind, packing)
    return with_groups(node, x, weight, extract.is_constant(packed), epilogues.fusion(node), None)


def reorders(node: Any) -> bool:
    """Whether a GEMM takes the columns of its activation in an order, which the key does not say."""
    return node.target is ops.overload("int4_mm") and len(node.args) > 6


def _zeros_dtype(dtype: Any, packing: str) -> str:
    return ops.zeros_in_words(packing) if dtype is torch.int32 else extract.dtype_name(dtype)


def tiled_int4(node: Any) -> Gemm | None:
    """ATen's GEMM: x [M, K], packed [N / 8, K / (16 inner), 32, inner / 2], group size, scales and zero points."""
    x, packed, size, scale = node.args
    weight, numbers = value(packed), value(scale)
    if weight.dim() != 4:
        raise Unsupported("a packed weight on another device")
    packing = _PACKINGS.get(2 * weight.shape[3])
    if packing is None or value(x).device.type != "cuda":
        raise Unsupported(f"a weight packed as {list(weight.shape)}")
    if not weight.is_contiguous() or not numbers.is_contiguous():
        raise Unsupported("a packed weight that is not contiguous")
    groups = Int4Format(size, extract.dtype_name(numbers.dtype), packing)
    _, added = mixed.added(node)
    bias = None if added is None else extract.bias(value(added), *map(extract.hint, value(node).shape))
    fusion = epilogues.fusion(node) if bias is None else "none"
    return with_groups(node, x, (WEIGHT, groups), extract.is_constant(packed), fusion, bias)


def absorb_tiled_int4(node: Any) -> Any:
    """Replace ATen's GEMM by `gemmdb::int4_mm`, which has a lowering. Return the new node."""
    x, packed, size, scale = node.args
    packing = _PACKINGS[2 * value(packed).shape[3]]
    graph = node.graph
    with graph.inserting_before(node):
        made = fx.call(graph, ops.overload("int4_mm"), (x, packed, scale, None, size, packing), node.meta)
    node.replace_all_uses_with(made)
    graph.erase_node(node)
    return made


def marked(node: Any, x: Any, old: Any = None) -> Gemm | None:
    """A mixed GEMM that was not rewritten. Its mark describes the weight before the cast. None without a mark, or with
    another GEMM's mark: Inductor copies metadata to all nodes that replace a node."""
    mark = (old or node).meta.get("custom", {}).get(WEIGHT_MARK)
    if mark is None:
        return None
    k, n = (extract.hint(value(one).shape[-1]) for one in (x, node))
    if tuple(mark["sizes"]) != (n, k):
        return None
    if "groups" in mark:
        return _marked_int4(node, x, mark)
    bias = Bias.parse(mark["bias"]) if mark["bias"] else None
    info = TensorInfo(mark["dtype"], tuple(mark["sizes"]), tuple(mark["strides"]), mark["offset"])
    return _int8(node, value(x), info, mark["constant"], mark["fusion"], bias)


def _marked_int4(node: Any, x: Any, mark: Mapping[str, Any]) -> Gemm | None:
    bias = Bias.parse(mark["bias"]) if mark["bias"] else None
    weight = WEIGHTS[mark["dtype"]], Int4Format(*mark["groups"])
    return with_groups(node, x, weight, mark["constant"], mark["fusion"], bias)


def _int8(node: Any, x: Any, weight: TensorInfo, constant: bool, fusion: str, bias: Bias | None) -> Gemm | None:
    """The GEMM of `x` [.., K] with a weight described as [N, K]."""
    a = extract.matrix(x)
    problem = Problem.from_tensors(
        "mixed_mm", a, _transposed(weight), numerics=extract.numerics(a.dtype, x.device.type), constant=constant,
        fusion=fusion, bias=bias,
    )  # fmt: skip
    m = x.numel() // x.shape[-1] if x.dim() > 2 else x.shape[0]
    # N comes from the node, because `weight` only has hints.
    return extract.gemm(node, problem, {"m": m, "n": value(node).shape[-1], "k": x.shape[-1]}, x.device)


def with_groups(node: Any, x: Any, weight: Weight, constant: bool, fusion: str, bias: Bias | None) -> Gemm | None:
    """The GEMM of `x` [M, K] with a weight that is scaled by groups."""
    (b, groups), rows = weight, value(x)
    a = extract.tensor(rows)
    m, k, n = *a.sizes, extract.hint(value(node).shape[-1])
    problem = Problem(
        "mixed_mm", m, n, k, a.operand, b, a.dtype, bias, fusion=fusion,
        numerics=extract.numerics(a.dtype, rows.device.type), constant=constant, int4=groups,
    )  # fmt: skip
    sizes = {"m": rows.shape[0], "n": value(node).shape[-1], "k": rows.shape[-1]}
    return extract.gemm(node, problem, sizes, rows.device)


def _transposed(info: TensorInfo) -> TensorInfo:
    return TensorInfo(info.dtype, info.sizes[::-1], info.strides[::-1], info.offset)


def mkl_linear(node: Any) -> Gemm | None:
    """MKL: x, the packed weight, the original weight [N, K], the bias or None."""
    x, _, original, bias = node.args[:4]
    return _linear(node, x, original, bias, epilogues.fusion(node))


def onednn_linear(node: Any) -> Gemm | None:
    """oneDNN: x, weight [N, K], the bias or None, and the fused activation (`none` for no activation)."""
    x, weight, bias, attribute = node.args[:4]
    if attribute == "none":
        fusion = epilogues.fusion(node)
    else:
        fusion = epilogues.joined(node, "light" if attribute in epilogues.LIGHT_ATTRIBUTES else "math")
    return _linear(node, x, weight, bias, fusion)


def onednn_binary(node: Any) -> Gemm | None:
    """oneDNN with a binary operation, such as an addition: x, the other tensor, weight [N, K], the bias or None."""
    x, _, weight, bias = node.args[:4]
    return _linear(node, x, weight, bias, epilogues.joined(node, "light", reads=1))


def fused_linear(node: Any) -> Gemm | None:
    """oneDNN with an activation matched by Inductor's lowering: x, weight [N, K], the bias or None."""
    x, weight, bias = node.args[:3]
    fused = match(node.target).nodes
    for old in fused:
        mixed = marked(node, x, old)
        if mixed is not None:
            return mixed
    fusion = epilogues.joined(node, epilogues.arithmetic(filter(fx.is_pointwise, fused)), int("other" in node.kwargs))
    return _linear(node, x, weight, bias, fusion)


def _linear(node: Any, x: Any, weight: Any, bias: Any, fusion: str) -> Gemm | None:
    """A packed linear: constant [N, K] weight, 1-D bias. Packing erased the weight's layout, so the key uses the dense
    layout that a linear's weight had before."""
    mixed = marked(node, x)
    if mixed is not None:
        return mixed
    x_val = value(x)
    n, k = (extract.hint(size) for size in value(weight).shape)
    a = extract.matrix(x_val)
    b = TensorInfo(a.dtype, (k, n), (1, k))
    rest: dict[str, Any] = {"fusion": fusion, "numerics": extract.numerics(a.dtype, "cpu"), "constant": True}
    if isinstance(bias, torch.fx.Node):
        rest["bias"] = extract.bias(value(bias), a.sizes[0], n)
    problem = Problem.from_tensors("addmm" if "bias" in rest else "mm", a, b, **rest)
    m = x_val.numel() // x_val.shape[-1] if x_val.dim() > 2 and k else x_val.shape[0]
    return extract.gemm(node, problem, {"m": m, "n": n, "k": k}, x_val.device)


def match(target: Any) -> Any:
    """Return the match of Inductor's lowering pattern if `target` is the pattern's handler; None for other targets."""
    arguments = getattr(target, "args", ())
    return arguments[0] if arguments and hasattr(arguments[0], "nodes") and hasattr(arguments[0], "pattern") else None
