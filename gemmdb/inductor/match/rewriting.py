"""New nodes in a graph that Inductor compiles: each with its fake value, and with nodes for its symbolic sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx.passes.shape_prop import _extract_tensor_metadata

from gemmdb.inductor.match.extract import known, value

aten = torch.ops.aten


def call(graph: Any, target: Any, args: tuple[Any, ...], meta: Mapping[str, Any] | None = None) -> Any:
    """A new node that calls `target`, whose first argument is a tensor's node. `meta`: the metadata of the node that it
    replaces; the stack trace, partitioner and recompute tags are kept."""
    inputs = torch.fx.map_arg(args, lambda node: node.meta["val"])
    with inputs[0].fake_mode:
        result = target(*inputs)
    node = graph.call_function(target, args)
    # The partitioner takes a node without tensor metadata for one of several outputs.
    node.meta = {**(meta or {}), "val": result, "tensor_meta": _extract_tensor_metadata(result)}
    node.meta.pop("eager_input_vals", None)
    return node


def size(graph: Any, node: Any, dim: int) -> Any:
    """A size of the tensor of `node`, as an argument for new nodes: a number, or a node if the size is symbolic."""
    found = value(node).shape[dim]
    if isinstance(found, int):
        return found
    made = graph.call_function(aten.sym_size.int, (node, dim))
    made.meta["val"] = found
    return made


def vector(graph: Any, scale: Any, matrix: Any, dim: int = 1) -> Any:
    """`scale` as a vector. It holds one number, or one for each step along dimension `dim` of `matrix`: the columns of
    a weight [K, N] for 1, the rows of an activation [M, K] for 0."""
    single = known(value(scale).numel() == 1)
    if value(scale).dim() == 1 and not single:
        return scale
    length = size(graph, matrix, dim)
    if not single:
        return call(graph, aten.reshape.default, (scale, [length]), scale.meta)
    one = call(graph, aten.reshape.default, (scale, [1]), scale.meta)
    return call(graph, aten.expand.default, (one, [length]), scale.meta)
