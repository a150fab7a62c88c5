"""Linears of a post-grad graph whose weight is packed or of 8-bit integers: those of MKL and oneDNN on a CPU,
Inductor's weight-only pattern, `gemmdb::mixed_mm`, and what carries a mark of the joint stage."""

from __future__ import annotations

from typing import Any

import torch

from gemmdb.inductor.match import epilogues, extract, int4
from gemmdb.inductor.match.extract import WEIGHT_MARK, Gemm
from gemmdb.inductor.match.fx import is_pointwise, value
from gemmdb.key.operands import Bias, TensorInfo
from gemmdb.key.problem import Problem


def weight_only(node: Any) -> Gemm | None:
    """Inductor's own pattern: x [.., K], int8 weight [N, K], scale [N]."""
    x, weight = node.kwargs["x"], node.kwargs["weight"]
    return _mixed(node, value(x), extract.tensor(value(weight)), extract.is_constant(weight), "scale", None)


def mixed_op(node: Any) -> Gemm | None:
    """Our own op (`ops.register`): x [.., K], weight as it is stored, and the scale if it has one."""
    x, w = value(node.args[0]), node.args[1]
    # The mark is what the joint stage saw. Both stages must look up the same Problem, and by now the bias is a separate
    # addition.
    mark = node.meta.get("custom", {}).get(WEIGHT_MARK, {})
    fusion = "scale" if len(node.args) > 2 else mark.get("fusion", "none")
    constant = mark.get("constant", extract.is_constant(w))
    bias = Bias.parse(mark["bias"]) if mark.get("bias") else None
    return _mixed(node, x, _transposed(extract.tensor(value(w))), constant, fusion, bias)


def marked(node: Any, x: Any, old: Any = None) -> Gemm | None:
    """A mixed GEMM that was not rewritten. Its mark describes the weight before the cast. None without a mark, or with
    the mark of another GEMM: Inductor copies metadata to all nodes that replace a node."""
    mark = (old or node).meta.get("custom", {}).get(WEIGHT_MARK)
    if mark is None:
        return None
    k, n = (extract.hint(value(one).shape[-1]) for one in (x, node))
    if tuple(mark["sizes"]) != (n, k):
        return None
    bias = Bias.parse(mark["bias"]) if mark["bias"] else None
    if "groups" in mark:
        return int4.marked(node, x, mark, bias)
    info = TensorInfo(mark["dtype"], tuple(mark["sizes"]), tuple(mark["strides"]), mark["offset"])
    return _mixed(node, value(x), info, mark["constant"], mark["fusion"], bias)


def _mixed(node: Any, x: Any, weight: TensorInfo, constant: bool, fusion: str, bias: Bias | None) -> Gemm | None:
    """The GEMM of `x` [.., K] with a weight that is described as [N, K]."""
    a = extract.matrix(x)
    problem = Problem.from_tensors(
        "mixed_mm", a, _transposed(weight), numerics=extract.numerics(a.dtype, x.device.type), constant=constant,
        fusion=fusion, bias=bias,
    )  # fmt: skip
    m = x.numel() // x.shape[-1] if x.dim() > 2 else x.shape[0]
    # N comes from the node, because `weight` only has hints.
    return extract.gemm(node, problem, {"m": m, "n": value(node).shape[-1], "k": x.shape[-1]}, x.device)


def _transposed(info: TensorInfo) -> TensorInfo:
    return TensorInfo(info.dtype, info.sizes[::-1], info.strides[::-1], info.offset)


def mkl_linear(node: Any) -> Gemm | None:
    """MKL: x, the packed weight, the weight as it was [N, K], the bias or None."""
    x, _, original, bias = node.args[:4]
    return _linear(node, x, original, bias, epilogues.fusion(node))


def onednn_linear(node: Any) -> Gemm | None:
    """oneDNN: x, weight [N, K], the bias or None, and the activation that it computes (`none` for no activation)."""
    x, weight, bias, attribute = node.args[:4]
    fusion = epilogues.fusion(node) if attribute == "none" else epilogues.behind_activation(node, attribute)
    return _linear(node, x, weight, bias, fusion)


def onednn_binary(node: Any) -> Gemm | None:
    """oneDNN with a binary operation, such as an addition: x, the other tensor, weight [N, K], the bias or None."""
    x, _, weight, bias = node.args[:4]
    return _linear(node, x, weight, bias, epilogues.behind_operators(node, (), 1))


def fused_linear(node: Any) -> Gemm | None:
    """oneDNN with an activation that Inductor's lowering matched: x, weight [N, K], the bias or None."""
    x, weight, bias = node.args[:3]
    fused = match(node.target).nodes
    for old in fused:
        mixed = marked(node, x, old)
        if mixed is not None:
            return mixed
    fusion = epilogues.behind_operators(node, filter(is_pointwise, fused), int("other" in node.kwargs))
    return _linear(node, x, weight, bias, fusion)


def _linear(node: Any, x: Any, weight: Any, bias: Any, fusion: str) -> Gemm | None:
    """A packed linear: constant [N, K] weight, 1-D bias. Packing erased the weight's own layout, so the key uses the
    dense layout that a linear's weight had before."""
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
    """The match of Inductor's lowering pattern if `target` is the pattern's handler; None for other targets."""
    arguments = getattr(target, "args", ())
    return arguments[0] if arguments and hasattr(arguments[0], "nodes") and hasattr(arguments[0], "pattern") else None
