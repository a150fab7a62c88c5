"""Horizontal fusion: replace GEMMs that share an activation by one call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

import torch

from gemmdb.inductor.match import fx, ops
from gemmdb.inductor.match import horizontal_members as members
from gemmdb.inductor.match.fx import Unsupported, value
from gemmdb.inductor.match.horizontal_members import D, Member, Values, shared
from gemmdb.kernels.triton import parts
from gemmdb.key.problem import Problem, Query

aten = torch.ops.aten
HORIZONTAL = "gemmdb_horizontal"
"""Node metadata: the decision that the lowering of a group's call applies."""
MAX_DISTANCE = 2
"""Maximum distance between two GEMMs of a group among all GEMMs of the graph. The results of a group stay in memory
together, so the GEMMs of all decoder layers on the encoder's output must not form one group."""


@dataclass(frozen=True)
class Group(Generic[D]):
    """GEMMs of one activation, in graph order."""

    members: tuple[Member[D], ...]

    @property
    def a(self) -> Any:
        """Node of the activation [M, K] that the first GEMM currently reads: it may be a GEMM of another group."""
        return shared(self.members[0].node)[0]

    @property
    def nodes(self) -> tuple[Any, ...]:
        """Node of each GEMM."""
        return tuple(member.node for member in self.members)

    @property
    def widths(self) -> tuple[int, ...]:
        """N of each GEMM."""
        return tuple(member.width for member in self.members)

    def unify(self) -> None:
        """Make all GEMMs read the same nodes. Programs create a view of the activation, and quantize it, for each."""
        for member in self.members:
            for own, first in zip(shared(member.node), shared(self.members[0].node), strict=True):
                if own not in member.own:  # One number may be the scale of both operands.
                    member.node.replace_input_with(own, first)

    @property
    def query(self) -> Query:
        """Return the query for one GEMM with all columns."""
        first = self.members[0].decision.query
        return replace(first, problem=_plain(first.problem).resized(first.problem.m, sum(self.widths), first.problem.k))


def numbered(pairs: Sequence[tuple[Any, D]], places: Mapping[Any, int]) -> dict[Any, int]:
    """Return the index of each GEMM among the graph's GEMMs. `places`: the index of each node."""
    return {node: number for number, node in enumerate(sorted((node for node, _ in pairs), key=places.__getitem__))}


def find(pairs: Sequence[tuple[Any, D]], numbers: Mapping[Any, int]) -> list[Group[D]]:
    """Return the groups among a graph's GEMMs, each given with its decision. `numbers`: see `numbered`."""
    found: dict[object, list[tuple[int, Member[D]]]] = {}
    values = Values()
    for node, decision in sorted(pairs, key=lambda pair: numbers[pair[0]]):
        try:
            member = members.read(node, decision)
        except Unsupported:
            continue
        if member is not None:
            found.setdefault(_kind(member, values), []).append((numbers[node], member))
    return [Group(group) for several in found.values() for group in _divided(several) if len(group) > 1]


def _divided(found: Sequence[tuple[int, Member[D]]]) -> Iterator[tuple[Member[D], ...]]:
    """Split (index, GEMM) pairs into groups that a kernel supports: at most MAX_WEIGHTS, near each other."""
    group, last = list[Member[D]](), 0
    for number, member in found:
        if group and (len(group) == parts.MAX_WEIGHTS or number - last > MAX_DISTANCE):
            yield tuple(group)
            group = []
        group.append(member)
        last = number
    yield tuple(group)


def _kind(member: Member[D], values: Values) -> object:
    """Return the properties shared within a group: the activation's values, K, dtypes, and weight layouts."""
    read = []
    for node in shared(member.node):
        seen, source = value(node), node
        while source.target in fx.FLAT_VIEWS:
            source = source.args[0]
        read.append((values.number(source), tuple(seen.shape), seen.stride(), seen.storage_offset()))
    problem = _plain(member.decision.problem)
    vectors = tuple(one and value(one).dtype for one in (member.scale, member.bias, member.zeros))
    family = (problem.op, problem.family, vectors, str(value(member.node).device))
    return tuple(read), family, value(member.weight).stride()


def _plain(problem: Problem) -> Problem:
    """Return the problem without an epilogue: grouped GEMMs store their outputs, and elementwise work reads them."""
    return problem if problem.fusion in ("none", "scale") else replace(problem, fusion="none")


def rewrite(graph: Any, group: Group[D], fused: object) -> None:
    """Replace the GEMMs of `group` by slices of the result of one `gemmdb::horizontal_mm` or `gemmdb::horizontal_int4`,
    with `fused` as its HORIZONTAL. Each slice has the memory layout of its GEMM's output.

    All new nodes are created before the graph changes, so an exception leaves only unused nodes.
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


def _call(graph: Any, group: Group[D]) -> tuple[Any, tuple[Any, ...]]:
    """Return the operator that replaces the GEMMs, and its arguments."""

    def each(name: str) -> list[Any]:
        nodes = [getattr(member, name) for member in group.members]
        return [_hoisted(graph, node) for node in nodes if node is not None]

    first = group.members[0]
    problem, (a, *scale) = first.decision.problem, shared(first.node)
    if problem.int4 is not None:
        tensors = (a, each("weight"), each("scale"), each("zeros"))
        return ops.overload("horizontal_int4"), (*tensors, problem.int4.size, problem.int4.packing)
    fp8 = (*scale, value(first.node).dtype, problem.numerics.fast) if scale else ()
    return ops.overload("horizontal_mm"), (a, each("weight"), each("scale"), each("bias"), *fp8)


def _hoisted(graph: Any, node: Any) -> Any:
    """Return an input, or copy a view of one with its whole view chain, at the current insertion point."""
    if node.op in ("placeholder", "get_attr"):
        return node
    return fx.call(graph, node.target, (_hoisted(graph, node.args[0]), *node.args[1:]), node.meta)
