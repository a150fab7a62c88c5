"""CPU linears whose weight Inductor has packed: those of MKL, of oneDNN, and of oneDNN with an activation."""

from __future__ import annotations

from typing import Any

import torch

from gemmdb.inductor.match import epilogues, extract, reading
from gemmdb.inductor.match.extract import value
from gemmdb.inductor.match.reading import Product
from gemmdb.inductor.match.weight_only import marked
from gemmdb.key.operands import TensorInfo
from gemmdb.key.problem import Problem


def mkl_linear(node: Any) -> Product | None:
    """MKL: x, the packed weight, the weight as it was [N, K], the bias or None."""
    x, _, original, bias = node.args[:4]
    return _linear(node, x, value(original), bias, epilogues.fusion(node))


def onednn_linear(node: Any) -> Product | None:
    """oneDNN: x, weight [N, K], the bias or None, and the activation that it computes (`none` for no activation)."""
    x, weight, bias, attribute = node.args[:4]
    fusion = epilogues.fusion(node) if attribute == "none" else epilogues.behind_activation(node, attribute)
    return _linear(node, x, value(weight), bias, fusion)


def onednn_binary(node: Any) -> Product | None:
    """oneDNN with a binary operation, such as an addition: x, the other tensor, weight [N, K], the bias or None."""
    x, _, weight, bias = node.args[:4]
    return _linear(node, x, value(weight), bias, epilogues.behind_operators(node, (), 1))


def fused_linear(node: Any) -> Product | None:
    """oneDNN with an activation that Inductor's lowering matched: x, weight [N, K], the bias or None."""
    x, weight, bias = node.args[:3]
    fused = match(node.target).nodes
    for old in fused:
        mixed = marked(node, x, old)
        if mixed is not None:
            return mixed
    operators = filter(extract.is_pointwise, fused)
    fusion = epilogues.behind_operators(node, operators, int("other" in node.kwargs))
    return _linear(node, x, value(weight), bias, fusion)


def _linear(node: Any, x: Any, weight: Any, bias: Any, fusion: str) -> Product | None:
    """A packed linear: constant [N, K] weight, 1-D bias. Packing erased the weight's own layout, so the key uses the
    dense layout that a linear's weight had before."""
    mixed = marked(node, x)
    if mixed is not None:
        return mixed
    x_val = value(x)
    n, k = (extract.hint(size) for size in weight.shape)
    a = extract.matrix(x_val)
    b = TensorInfo(a.dtype, (k, n), (1, k))
    rest: dict[str, Any] = {"fusion": fusion, "numerics": extract.numerics(a.dtype, "cpu"), "constant": True}
    if isinstance(bias, torch.fx.Node):
        rest["bias"] = extract.bias(value(bias), a.sizes[0], n)
    problem = Problem.from_tensors("addmm" if "bias" in rest else "mm", a, b, **rest)
    m = x_val.numel() // x_val.shape[-1] if x_val.dim() > 2 and k else x_val.shape[0]
    return reading.found(node, problem, {"m": m, "n": n, "k": k}, x_val.device)


def match(target: Any) -> Any:
    """The match of Inductor's lowering pattern if `target` is the pattern's handler; None for other targets."""
    arguments = getattr(target, "args", ())
    return arguments[0] if arguments and hasattr(arguments[0], "nodes") and hasattr(arguments[0], "pattern") else None
