"""The products of activations with an int8 or uint8 weight in a post-grad graph."""

from __future__ import annotations

from typing import Any

from gemmdb.inductor.match import extract, int4_products, reading
from gemmdb.inductor.match.extract import value
from gemmdb.inductor.match.reading import Product
from gemmdb.key.operands import Bias, TensorInfo
from gemmdb.key.problem import Problem


def weight_only(node: Any) -> Product | None:
    """Inductor's own pattern: x [.., K], int8 weight [N, K], scale [N]."""
    x, weight = value(node.kwargs["x"]), value(node.kwargs["weight"])
    return _mixed(node, x, extract.tensor(weight), reading.constant(node.kwargs["weight"]), "scale", None)


def mixed_op(node: Any) -> Product | None:
    """Our own op (`ops.register`): x [.., K], weight as it is stored, and the scale if it has one."""
    x, w = value(node.args[0]), value(node.args[1])
    info = extract.tensor(w)
    stored = TensorInfo(info.dtype, info.sizes[::-1], info.strides[::-1], info.offset)
    # The mark is what the joint stage saw. Both stages must look up the same Problem, and by now the bias is a separate
    # addition.
    mark = node.meta.get("custom", {}).get(reading.MARK, {})
    fusion = "scale" if len(node.args) > 2 else mark.get("fusion", "none")
    constant = mark.get("constant", reading.constant(node.args[1]))
    bias = Bias.parse(mark["bias"]) if mark.get("bias") else None
    return _mixed(node, x, stored, constant, fusion, bias)


def marked(node: Any, x: Any, old: Any = None) -> Product | None:
    """A mixed product that was not rewritten. Its mark describes the weight before the cast. None without a mark, or
    with the mark of another product: Inductor copies metadata to all nodes that replace a node."""
    mark = (old or node).meta.get("custom", {}).get(reading.MARK)
    if mark is not None and "groups" in mark:
        return int4_products.marked(node, x, mark)
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
    # N comes from the node, because `weight` only has hints.
    return reading.found(node, problem, {"m": m, "n": value(node).shape[-1], "k": x.shape[-1]}, x.device)
