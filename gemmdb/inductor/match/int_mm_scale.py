"""An integer product with the scale after it as one node: CUTLASS multiplies by the scale before it stores.

Inductor fuses what follows into Triton kernels, and not into these, so the nodes are taken together in the graph. Only
what a CUTLASS config answers is rewritten; every other product keeps its operator.
"""

from __future__ import annotations

from typing import Any

import torch

from gemmdb.inductor import ops
from gemmdb.inductor.decision import Decision
from gemmdb.inductor.match import extract, rewriting
from gemmdb.inductor.match.extract import value

aten = torch.ops.aten
_CAST = torch.ops.prims.convert_element_type.default
_FLOATS = (torch.bfloat16, torch.float16, torch.float32)


def wanted(decision: Decision) -> bool:
    """Whether a decision is about an integer product and its scale in one CUTLASS kernel."""
    problem, config = decision.problem, decision.config
    cutlass = config is not None and config.backend == "cutlass"
    return cutlass and problem.spec.integer and problem.fusion == "scale"


def absorb(node: Any) -> Any:
    """The `gemmdb::int_mm_scaled` that now stands for the `_int_mm` at `node`, its scale and the cast that follows;
    None, with nothing changed, where the scale is no tensor over the columns. The old nodes are left unused."""
    multiply = extract.scale_user(node)
    if multiply is None:
        return None
    kept, scale = _arguments(multiply, node)
    if scale is None:
        return None
    after = extract.users(multiply)
    last = after[0] if len(after) == 1 and after[0].target is _CAST else multiply
    if value(last).numel() != value(node).numel():
        return None
    steps = [*_steps(node, kept), multiply, *_steps(multiply, last)]
    graph = node.graph
    with graph.inserting_before(multiply):
        vector = rewriting.vector(graph, scale, node.args[1])
        new = rewriting.call(graph, ops.register_scaled(), (*node.args[:2], vector, value(last).dtype), node.meta)
    with graph.inserting_before(last):
        last.replace_all_uses_with(_viewed(graph, new, steps))
    return new


def _arguments(multiply: Any, product: Any) -> tuple[Any, Any]:
    """(the product, maybe as views and casts have it, and what it is multiplied by; None instead of that unless it is a
    tensor of one value or one per column)."""
    columns = value(product).shape[1]
    nodes = [arg for arg in multiply.args if isinstance(arg, torch.fx.Node)]
    kept = next(arg for arg in nodes if extract.leads_to(arg, product, columns))
    for other in nodes:
        if other is not kept and value(other).dtype in _FLOATS and value(other).numel() in (1, columns):
            return kept, other
    return kept, None


def _steps(first: Any, last: Any) -> list[Any]:
    """The views and casts after `first` that make `last` of it, in order."""
    found = []
    while last is not first:
        found.append(last)
        last = last.args[0]
    return found[::-1]


def _viewed(graph: Any, new: Any, steps: list[Any]) -> Any:
    """`new` [M, N] in the shape that `steps` gave the product, by views like theirs, which know the symbolic sizes."""
    for step in steps:
        if step.target in extract.VIEWS:
            new = rewriting.call(graph, step.target, (new, *step.args[1:]), step.meta)
        while value(new).dim() < value(step).dim():
            # The scale has dimensions of size 1 that the product has not.
            new = rewriting.call(graph, aten.unsqueeze.default, (new, 0), step.meta)
    return new
