"""Run-time choice between two graphs by a condition on sizes, with Inductor's own lowering of `torch.cond`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor.lowering import lowerings
from torch._inductor.virtualized import V

from gemmdb.inductor.lower.adapter import ir_view, symbolic
from gemmdb.inductor.lower.adapter.state import replaced
from gemmdb.rejected import Rejected


@dataclass(frozen=True)
class Branch:
    """One of the two graphs, with a name that is unique in the compile."""

    name: str
    graph: torch.fx.GraphModule


def rejection() -> Rejected | None:
    """Why the compile in progress should not choose at run time, None if it may."""
    graphs = inductor_config.triton.cudagraphs
    return Rejected("Inductor does not capture run-time branches in CUDA graphs") if graphs else None


def either(
    condition: Any, branches: tuple[Branch, Branch], operands: Sequence[tuple[Any, torch.Tensor]], like: Any
) -> Any:
    """Return the output of the first branch if `condition` holds, else of the second. The fake tensor `like` describes
    it.

    `operands`: the tensors that both graphs take, in Inductor's IR and as fake tensors. After them the graphs take the
    symbols in their shapes, in the order of `symbols`. Each graph returns a 1-tuple.
    """
    fakes = [fake for _, fake in operands]
    sizes = symbols(fakes)
    # A branch's graph assumes that its operands have the strides of their fake tensors.
    nodes = [ir.ExternKernel.require_exact_strides(node, fake.stride(), allow_padding=False) for node, fake in operands]
    subgraphs = [ir.Subgraph(name=one.name, graph_module=one.graph) for one in branches]
    weights = [node for node in nodes if (node.get_dtype(), node.get_device().type) == (torch.int8, "cpu")]
    watched = all(ir_view.aligned(weight) is weight for weight in weights)
    node = _cond_node([*fakes, *sizes], like)
    with replaced(V.graph, "current_node", node), ir_view.within_watched() if watched else nullcontext():
        lower = lowerings[torch.ops.higher_order.cond]
        (result,) = lower(condition, *subgraphs, [*nodes, *(size.node.expr for size in sizes)])
    return result


def symbols(fakes: Sequence[torch.Tensor]) -> list[Any]:
    """Return the symbolic integers in the shapes and strides of fake tensors, each once."""
    found: dict[Any, Any] = {}
    for fake in fakes:
        for size in (*fake.shape, *fake.stride()):
            if isinstance(size, torch.SymInt):
                for symbol in size.node.expr.free_symbols:
                    # torch has no hint for a data-dependent size, and must not mistake our guess for a hint.
                    known = None if symbolic.from_data(symbol) else symbolic.hint(symbol)
                    found[symbol] = size.node.shape_env.create_symintnode(symbol, hint=known)
    return [found[symbol] for symbol in sorted(found, key=str)]


def _cond_node(operands: Sequence[Any], like: Any) -> torch.fx.Node:
    """Create a node with what Inductor's lowering reads: fake operands and outputs."""
    graph = torch.fx.Graph()
    inputs = [graph.placeholder(f"operand_{i}") for i in range(len(operands))]
    for node, value in zip(inputs, operands, strict=True):
        node.meta["val"] = value
    made = graph.call_function(torch.ops.higher_order.cond, (True, None, None, inputs))
    made.meta["val"] = (like,)
    return made
