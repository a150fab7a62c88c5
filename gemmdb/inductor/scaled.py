"""An integer product with the scale after it as one node: CUTLASS multiplies by the scale before it stores.

Inductor fuses what follows into Triton kernels, and not into these, so the nodes are taken together in the graph. Only
what a CUTLASS config answers is rewritten; every other product keeps its operator.
"""

from __future__ import annotations

from typing import Any

import torch

from gemmdb.inductor import extract, ops
from gemmdb.inductor.extract import value
from gemmdb.inductor.session import Decision

aten = torch.ops.aten
_CAST = torch.ops.prims.convert_element_type.default


def wanted(decision: Decision) -> bool:
    """Whether a decision is about an integer product and its scale in one CUTLASS kernel."""
    problem, config = decision.problem, decision.config
    cutlass = config is not None and config.backend == "cutlass"
    return cutlass and (problem.op, problem.fusion) == ("int_mm", "scale")


def absorb(node: Any) -> Any:
    """The `gemmdb::int_mm_scaled` that now stands for the `_int_mm` at `node`, its scale and the cast that follows;
    None, with nothing changed, where the scale is no tensor over the columns. The old nodes are left unused."""
    multiply = extract.scale_user(node)
    if multiply is None:
        return None
    scale = _scale(multiply, node)
    if scale is None:
        return None
    after = extract.users(multiply)
    last = after[0] if len(after) == 1 and after[0].target is _CAST else multiply
    if value(last).numel() != value(node).numel():
        return None
    graph = node.graph
    with graph.inserting_before(multiply):
        vector = _vector(graph, scale, value(node).shape[1])
        new = _call(graph, ops.register_scaled(), (*node.args[:2], vector, value(last).dtype), node.meta)
    with graph.inserting_before(last):
        shape = list(value(last).shape)
        result = new if value(last).dim() == 2 else _call(graph, aten.reshape.default, (new, shape), last.meta)
    last.replace_all_uses_with(result)
    return new


def _scale(multiply: Any, product: Any) -> Any:
    """What the product is multiplied by, None unless it is a tensor of one value or one per column."""
    others = [arg for arg in multiply.args if isinstance(arg, torch.fx.Node) and not _comes_from(arg, product)]
    if len(others) != 1 or value(others[0]).dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return None
    return others[0] if value(others[0]).numel() in (1, value(product).shape[1]) else None


def _comes_from(node: Any, product: Any) -> bool:
    while node is not product and node.op == "call_function" and len(node.all_input_nodes) == 1:
        node = node.all_input_nodes[0]
    return node is product


def _vector(graph: Any, scale: Any, n: Any) -> Any:
    """The scale as [n]."""
    if value(scale).numel() == 1 and n != 1:
        one = _call(graph, aten.reshape.default, (scale, [1]), scale.meta)
        return _call(graph, aten.expand.default, (one, [n]), scale.meta)
    if value(scale).dim() == 1:
        return scale
    return _call(graph, aten.reshape.default, (scale, [n]), scale.meta)


def _call(graph: Any, target: Any, args: tuple[Any, ...], meta: dict[str, Any]) -> Any:
    inputs = [value(arg) if isinstance(arg, torch.fx.Node) else arg for arg in args]
    with inputs[0].fake_mode:
        result = target(*inputs)
    node = graph.call_function(target, args)
    kept = {name: item for name, item in meta.items() if name not in ("tensor_meta", "eager_input_vals")}
    node.meta = {**kept, "val": result}
    return node
