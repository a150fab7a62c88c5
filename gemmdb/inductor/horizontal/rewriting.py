"""Puts one call of `gemmdb::horizontal_mm` in the place of the products of a group."""

from __future__ import annotations

from typing import Any

import torch

from gemmdb.inductor import ops
from gemmdb.inductor.horizontal.groups import Group
from gemmdb.inductor.lower.horizontal import HORIZONTAL, Fused
from gemmdb.inductor.match import rewriting
from gemmdb.inductor.match.extract import value

aten = torch.ops.aten


def rewrite(graph: Any, group: Group, fused: Fused) -> None:
    """Replace the products of `group` by parts of one result. Each part lies in memory as the product did.

    All new nodes are made before the graph is changed, so an exception leaves only unused nodes behind.
    """
    first = group.members[0]
    scales, biases = ([one for one in column if one is not None] for column in zip(*_vectors(group), strict=True))
    rows = int(value(group.a).shape[0])
    with graph.inserting_before(first.node):
        weights = [_hoisted(graph, member.weight, first.node) for member in group.members]
        args = (group.a, weights, _all(graph, scales, first.node), _all(graph, biases, first.node), *_of_fp8(group))
        result = rewriting.call(graph, ops.register_horizontal(), args, first.node.meta)
        result.meta[HORIZONTAL] = fused
        start, results = 0, []
        for member in group.members:
            end = start + rows * member.width
            part = rewriting.call(graph, aten.slice.Tensor, (result, 0, start, end), member.node.meta)
            results.append(rewriting.call(graph, aten.reshape.default, (part, [rows, member.width]), member.node.meta))
            start = end
    for member, part in zip(group.members, results, strict=True):
        member.node.replace_all_uses_with(part)
        graph.erase_node(member.node)


def _of_fp8(group: Group) -> tuple[Any, ...]:
    """The activation's scale, the dtype of the outputs, and how the matrix unit sums; empty for others."""
    first = group.members[0]
    return (
        () if group.a_scale is None else (group.a_scale, value(first.node).dtype, first.decision.problem.numerics.fast)
    )


def _vectors(group: Group) -> list[tuple[Any, Any]]:
    return [(member.scale, member.bias) for member in group.members]


def _all(graph: Any, nodes: list[Any], before: Any) -> list[Any]:
    return [_hoisted(graph, node, before) for node in nodes]


def _hoisted(graph: Any, node: Any, before: Any) -> Any:
    """A view of an input that can be read at `before`: that view, or a copy of it with all that it sees."""
    if node.op in ("placeholder", "get_attr"):
        return node
    source = _hoisted(graph, node.args[0], before)
    return rewriting.call(graph, node.target, (source, *node.args[1:]), node.meta)
