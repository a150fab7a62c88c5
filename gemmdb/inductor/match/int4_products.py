"""The products of activations with an int4 weight in a post-grad graph: ATen's for a tiled weight, our own operator,
and those whose weight the program makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gemmdb.inductor.match import epilogues, extract, mixed, ops, reading, rewriting
from gemmdb.inductor.match.extract import Unsupported, value
from gemmdb.inductor.match.reading import Product
from gemmdb.key.int4 import TILED, WEIGHT, Int4Format
from gemmdb.key.operands import Bias
from gemmdb.key.problem import Problem

aten = torch.ops.aten
TILED_MM = aten._weight_int4pack_mm.default
_PACKINGS = {inner: packing for packing, inner in TILED.items()}


def tiled(node: Any) -> Product | None:
    """ATen's product: x [M, K], packed [N / 8, K / (16 inner), 32, inner / 2], group size, scales and zero points."""
    x, packed, size, scale = node.args
    weight, numbers = value(packed), value(scale)
    if weight.dim() != 4:
        raise Unsupported("a packed weight of another device")
    packing = _PACKINGS.get(2 * weight.shape[3])
    if packing is None or value(x).device.type != "cuda":
        raise Unsupported(f"a weight packed as {list(weight.shape)}")
    if not weight.is_contiguous() or not numbers.is_contiguous():
        raise Unsupported("a packed weight with gaps")
    own = Int4Format(size, extract.dtype_name(numbers.dtype), packing)
    _, bias = mixed.added(node)
    if bias is not None:
        m, n = (extract.hint(one) for one in value(node).shape)
        return _product(node, value(x), own, reading.constant(packed), "none", extract.bias(value(bias), m, n))
    return _product(node, value(x), own, reading.constant(packed), epilogues.fusion(node), None)


def int4_op(node: Any) -> Product | None:
    """Our own op (`ops.register_int4`): x [M, K], the tensors of the weight, group size and packing."""
    x, packed, scale, zeros, size, packing = node.args
    mark = node.meta.get("custom", {}).get(reading.MARK, {})
    kind = "none" if zeros is None else extract.dtype_name(value(zeros).dtype)
    own = Int4Format(size, extract.dtype_name(value(scale).dtype) if packing in TILED else kind, packing)
    if "groups" in mark:  # Both stages must look up the same Problem, and by now the bias is a separate addition.
        bias = Bias.parse(mark["bias"]) if mark["bias"] else None
        return _product(node, value(x), own, mark["constant"], mark["fusion"], bias)
    return _product(node, value(x), own, reading.constant(packed), epilogues.fusion(node), None)


def marked(node: Any, x: Any, mark: Mapping[str, Any]) -> Product | None:
    """A product that was not rewritten, by its mark. None with the mark of another product: Inductor copies metadata to
    all nodes that replace a node."""
    if tuple(mark["sizes"]) != (extract.hint(value(node).shape[-1]), extract.hint(value(x).shape[-1])):
        return None
    bias = Bias.parse(mark["bias"]) if mark["bias"] else None
    return _product(node, value(x), Int4Format(*mark["groups"]), mark["constant"], mark["fusion"], bias)


def absorb(node: Any) -> Any:
    """Replace ATen's product by our own op, which has a lowering. Returns the new node."""
    x, packed, size, scale = node.args
    packing = _PACKINGS[2 * value(packed).shape[3]]
    graph = node.graph
    with graph.inserting_before(node):
        made = rewriting.call(graph, ops.register_int4(), (x, packed, scale, None, size, packing), node.meta)
    node.replace_all_uses_with(made)
    graph.erase_node(node)
    return made


def _product(node: Any, x: Any, own: Int4Format, constant: bool, fusion: str, bias: Bias | None) -> Product | None:
    a = extract.tensor(x)
    m, k, n = *a.sizes, extract.hint(value(node).shape[-1])
    problem = Problem(
        "mixed_mm", m, n, k, a.operand, WEIGHT, a.dtype, bias, fusion=fusion,
        numerics=extract.numerics(a.dtype, x.device.type), constant=constant, int4=own,
    )  # fmt: skip
    return reading.found(node, problem, {"m": x.shape[0], "n": value(node).shape[-1], "k": x.shape[-1]}, x.device)
