"""Lower the nodes of another graph in place of one of the graph being lowered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._inductor.virtualized import V


def lowered(graph: torch.fx.Graph, operands: Sequence[Any], constants: Sequence[torch.Tensor]) -> Any:
    """Return what the last node of `graph` computes, in Inductor's IR. Each node is lowered as one of the graph at
    hand, with Inductor's rules of what is stored. The placeholders are `operands`, in IR, and then `constants`."""
    known = V.graph.env
    given = iter([*operands, *(V.graph.add_tensor_constant(one) for one in constants)])
    nodes = list(graph.nodes)
    try:
        for node in nodes:
            known[node] = next(given) if node.op == "placeholder" else V.graph.run_node(node)
        return known[nodes[-1]]
    finally:
        for node in nodes:
            known.pop(node, None)
