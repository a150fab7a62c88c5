"""Puts one call of `gemmdb::horizontal_mm` or `gemmdb::horizontal_int4` in the place of the products of a group."""

from __future__ import annotations

from typing import Any

import torch

from gemmdb.inductor.lower.horizontal import HORIZONTAL, Fused
from gemmdb.inductor.match import fx, ops
from gemmdb.inductor.match.fx import value
from gemmdb.inductor.match.horizontal import Group

aten = torch.ops.aten


def rewrite(graph: Any, group: Group, fused: Fused) -> None:
    """Replace the products of `group` by parts of one result. Each part lies in memory as the product did.

    All new nodes are made before the graph is changed, so an exception leaves only unused nodes behind.
    """
    first = group.members[0]
    rows = int(value(group.a).shape[0])
    with graph.inserting_before(first.node):
        result = fx.call(graph, *_call(graph, group), first.node.meta)
        result.meta[HORIZONTAL] = fused
        start, results = 0, []
        for member in group.members:
            end = start + rows * member.width
            part = fx.call(graph, aten.slice.Tensor, (result, 0, start, end), member.node.meta)
            results.append(fx.call(graph, aten.reshape.default, (part, [rows, member.width]), member.node.meta))
            start = end
    for member, part in zip(group.members, results, strict=True):
        member.node.replace_all_uses_with(part)
        graph.erase_node(member.node)


def _call(graph: Any, group: Group) -> tuple[Any, tuple[Any, ...]]:
    """The operator in the place of the products, and its arguments. Views of inputs are read before the first product,
    too."""
    first = group.members[0]

    def each(name: str) -> list[Any]:
        nodes = [getattr(member, name) for member in group.members]
        return [_hoisted(graph, node, first.node) for node in nodes if node is not None]

    problem = first.decision.problem
    if problem.int4 is not None:
        tensors = (group.a, each("weight"), each("scale"), each("zeros"))
        return ops.register_horizontal_int4(), (*tensors, problem.int4.size, problem.int4.packing)
    tensors = (group.a, each("weight"), each("scale"), each("bias"))
    fp8 = () if group.a_scale is None else (group.a_scale, value(first.node).dtype, problem.numerics.fast)
    return ops.register_horizontal(), (*tensors, *fp8)


def _hoisted(graph: Any, node: Any, before: Any) -> Any:
    """A view of an input that can be read at `before`: that view, or a copy of it with all that it sees."""
    if node.op in ("placeholder", "get_attr"):
        return node
    source = _hoisted(graph, node.args[0], before)
    return fx.call(graph, node.target, (source, *node.args[1:]), node.meta)
