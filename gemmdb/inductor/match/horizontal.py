"""Finds the products of a graph that multiply the same activation, in the same way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.match import horizontal_members as members
from gemmdb.inductor.match.fx import Unsupported, value
from gemmdb.inductor.match.horizontal_members import Member, shared
from gemmdb.inductor.match.horizontal_values import Values
from gemmdb.kernels.triton import parts
from gemmdb.key.problem import Problem, Query

aten = torch.ops.aten
_SAME_ORDER = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
NEXT = 2
"""How far apart two products of a group may be among all products of the graph. The results of a group are in memory
together, so those of a decoder's layers, which all read what the encoder made, must not be one group."""


@dataclass(frozen=True)
class Group:
    """Products of one activation, in the order of the graph."""

    members: tuple[Member, ...]

    @property
    def a(self) -> Any:
        """The node of the activation [M, K] that the first product reads now: it may be a product of another group."""
        return shared(self.members[0].node)[0]

    @property
    def a_scale(self) -> Any:
        """The node of the scale of an fp8 activation that the first product reads now; None for others."""
        return next(iter(shared(self.members[0].node)[1:]), None)

    @property
    def nodes(self) -> tuple[Any, ...]:
        """The node of each product."""
        return tuple(member.node for member in self.members)

    @property
    def widths(self) -> tuple[int, ...]:
        """N of each product."""
        return tuple(member.width for member in self.members)

    def unify(self) -> None:
        """Let all products read the same nodes. Programs make a view of the activation for each, and quantise it for
        each."""
        for member in self.members:
            for own, first in zip(shared(member.node), shared(self.members[0].node), strict=True):
                if own not in member.own:  # One number may be the scale of both operands.
                    member.node.replace_input_with(own, first)

    @property
    def query(self) -> Query:
        """The query for one product with all columns."""
        first = self.members[0].decision.query
        return replace(first, problem=_plain(first.problem).resized(first.problem.m, sum(self.widths), first.problem.k))


def numbered(pairs: Sequence[tuple[Any, Decision]], places: Mapping[Any, int]) -> dict[Any, int]:
    """The number of each product among those of the graph. `places`: the number of each node."""
    return {node: number for number, node in enumerate(sorted((node for node, _ in pairs), key=places.__getitem__))}


def find(pairs: Sequence[tuple[Any, Decision]], numbers: Mapping[Any, int]) -> list[Group]:
    """The groups among products of a graph, each given with its decision. `numbers`: as `numbered` says."""
    found: dict[object, list[tuple[int, Member]]] = {}
    values = Values()
    for node, decision in sorted(pairs, key=lambda pair: numbers[pair[0]]):
        member = _read(node, decision)
        if member is not None:
            found.setdefault(_kind(member, values), []).append((numbers[node], member))
    return [group for several in found.values() for group in _divided(several)]


def _read(node: Any, decision: Decision) -> Member | None:
    """The product as part of a group; None if it cannot be one, so that the others still can."""
    try:
        return members.read(node, decision)
    except Unsupported:
        return None


def _divided(found: Sequence[tuple[int, Member]]) -> Iterator[Group]:
    """Groups of at most as many products as a kernel takes, given with their places among all products."""
    group, last = list[Member](), 0
    for place, member in found:
        if group and (len(group) == parts.MAX_WEIGHTS or place - last > NEXT):
            yield from _several(group)
            group = []
        group.append(member)
        last = place
    yield from _several(group)


def _several(found: Sequence[Member]) -> Iterator[Group]:
    if len(found) > 1:
        yield Group(tuple(found))


def _kind(member: Member, values: Values) -> object:
    """What the products of a group have in common: the values of the activation, K, dtypes, and how the weights lie."""
    weight = value(member.weight)
    read = tuple((values.number(_source(one)), *_lies(value(one))) for one in shared(member.node))
    problem = _plain(member.decision.problem)
    vectors = tuple(one and value(one).dtype for one in (member.scale, member.bias, member.zeros))
    family = (problem.op, problem.family, vectors, str(value(member.node).device))
    return read, family, weight.stride()


def _source(node: Any) -> Any:
    while node.target in _SAME_ORDER:
        node = node.args[0]
    return node


def _lies(seen: Any) -> tuple[object, ...]:
    return tuple(seen.shape), seen.stride(), seen.storage_offset()


def _plain(problem: Problem) -> Problem:
    """The problem without an epilogue: the products of a group store what elementwise work then reads."""
    return problem if problem.fusion in ("none", "scale") else replace(problem, fusion="none")
