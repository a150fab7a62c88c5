"""Horizontal fusion: the GEMMs of a graph that multiply the same activation alike, and one call in their place."""

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
"""Node metadata: what the lowering of a group's call carries out."""
MAX_DISTANCE = 2
"""How far apart two GEMMs of a group may be among all GEMMs of the graph. The results of a group are in memory
together, so those of a decoder's layers, which all read what the encoder made, must not be one group."""


@dataclass(frozen=True)
class Group(Generic[D]):
    """GEMMs of one activation, in the order of the graph."""

    members: tuple[Member[D], ...]

    @property
    def a(self) -> Any:
        """The node of the activation [M, K] that the first GEMM reads now: it may be a GEMM of another group."""
        return shared(self.members[0].node)[0]

    @property
    def nodes(self) -> tuple[Any, ...]:
        """The node of each GEMM."""
        return tuple(member.node for member in self.members)

    @property
    def widths(self) -> tuple[int, ...]:
        """N of each GEMM."""
        return tuple(member.width for member in self.members)

    def unify(self) -> None:
        """Let all GEMMs read the same nodes. Programs make a view of the activation for each, and quantise it for
        each."""
        for member in self.members:
            for own, first in zip(shared(member.node), shared(self.members[0].node), strict=True):
                if own not in member.own:  # One number may be the scale of both operands.
                    member.node.replace_input_with(own, first)

    @property
    def query(self) -> Query:
        """The query for one GEMM with all columns."""
        first = self.members[0].decision.query
        return replace(first, problem=_plain(first.problem).resized(first.problem.m, sum(self.widths), first.problem.k))


def numbered(pairs: Sequence[tuple[Any, D]], places: Mapping[Any, int]) -> dict[Any, int]:
    """The number of each GEMM among those of the graph. `places`: the number of each node."""
    return {node: number for number, node in enumerate(sorted((node for node, _ in pairs), key=places.__getitem__))}


def find(pairs: Sequence[tuple[Any, D]], numbers: Mapping[Any, int]) -> list[Group[D]]:
    """The groups among GEMMs of a graph, each given with its decision. `numbers`: as `numbered` says."""
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
    """At most as many GEMMs as a kernel takes, given with their numbers."""
    group, last = list[Member[D]](), 0
    for number, member in found:
        if group and (len(group) == parts.MAX_WEIGHTS or number - last > MAX_DISTANCE):
            yield tuple(group)
            group = []
        group.append(member)
        last = number
    yield tuple(group)


def _kind(member: Member[D], values: Values) -> object:
    """What the GEMMs of a group have in common: the values of the activation, K, dtypes, and how the weights lie."""
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
    """The problem without an epilogue: the GEMMs of a group store what elementwise work then reads."""
    return problem if problem.fusion in ("none", "scale") else replace(problem, fusion="none")


def rewrite(graph: Any, group: Group[D], fused: object) -> None:
    """Replace the GEMMs of `group` by parts of the result of one `gemmdb::horizontal_mm` or `gemmdb::horizontal_int4`,
    which gets `fused` as its HORIZONTAL. Each part lies in memory as the output of its GEMM did.

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


def _call(graph: Any, group: Group[D]) -> tuple[Any, tuple[Any, ...]]:
    """The operator in the place of the GEMMs, and its arguments."""

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
    """An input, or a copy of a view of one, with all that it sees, where nodes are inserted now."""
    if node.op in ("placeholder", "get_attr"):
        return node
    return fx.call(graph, node.target, (_hoisted(graph, node.args[0]), *node.args[1:]), node.meta)
