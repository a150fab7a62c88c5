"""An integer product with the scale after it as one node: CUTLASS multiplies by the scale before it stores.

Inductor fuses following work into Triton kernels but not into CUTLASS kernels, so we join the nodes in the graph. Only
products with a CUTLASS config are rewritten. Every other product keeps its operator.
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
    """Replace the `_int_mm` at `node`, its scale and the cast after it by one `gemmdb::int_mm_scaled`, and return that.
    The old nodes stay in the graph, unused. If the scale is not a tensor over the columns, changes nothing and returns
    None."""
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
    """(the product, possibly through views and casts; its factor). The factor is None unless it is a tensor of one
    value or of one value per column."""
    columns = value(product).shape[1]
    nodes = [arg for arg in multiply.args if isinstance(arg, torch.fx.Node)]
    kept = next(arg for arg in nodes if extract.leads_to(arg, product, columns))
    for other in nodes:
        if other is not kept and value(other).dtype in _FLOATS and value(other).numel() in (1, columns):
            return kept, other
    return kept, None


def _steps(first: Any, last: Any) -> list[Any]:
    """The views and casts that lead from `first` to `last`, in order."""
    found = []
    while last is not first:
        found.append(last)
        last = last.args[0]
    return found[::-1]


def _viewed(graph: Any, new: Any, steps: list[Any]) -> Any:
    """`new` [M, N] in the shape that `steps` gave the product. It repeats their views, with their symbolic
    sizes."""
    for step in steps:
        if step.target in extract.VIEWS:
            new = rewriting.call(graph, step.target, (new, *step.args[1:]), step.meta)
        while value(new).dim() < value(step).dim():
            # The scale has dimensions of size 1 that the product lacks.
            new = rewriting.call(graph, aten.unsqueeze.default, (new, 0), step.meta)
    return new
