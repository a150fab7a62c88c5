"""Finds the products of a graph that multiply the same activation, in the same way."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from gemmdb.inductor import ops
from gemmdb.inductor.decision import Decision
from gemmdb.inductor.horizontal.values import Values
from gemmdb.inductor.match import chains, scaled_mm
from gemmdb.inductor.match.extract import value
from gemmdb.kernels.triton import parts
from gemmdb.key.problem import Problem, Query

aten = torch.ops.aten
_SAME_ORDER = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
_OPS = {aten.mm.default: "mm", aten.addmm.default: "addmm"}
_HALF, _GPUS = ("bf16", "fp16"), ("cuda",)
STEP = 16
"""Every weight has a multiple of so many columns."""
NEXT = 2
"""How far apart two products of a group may be among all products of the graph. The results of a group are in memory
together, so those of a decoder's layers, which all read what the encoder made, must not be one group."""


@dataclass(frozen=True)
class Member:
    """One product: its node, what was decided, and the nodes of what only it reads. Each of `scale` and `bias` is a
    vector [N] or None; the scale of an fp8 weight is [1, N], or one number."""

    node: Any
    decision: Decision
    weight: Any
    scale: Any = None
    bias: Any = None

    @property
    def own(self) -> tuple[Any, ...]:
        """The nodes that only this product reads."""
        return tuple(node for node in (self.weight, self.scale, self.bias) if node is not None)

    @property
    def width(self) -> int:
        """N."""
        return self.decision.problem.n


@dataclass(frozen=True)
class Group:
    """Products of one activation, in the order of the graph."""

    members: tuple[Member, ...]

    @property
    def a(self) -> Any:
        """The node of the activation [M, K] that the first product reads now: it may be a product of another group."""
        return _shared(self.members[0].node)[0]

    @property
    def a_scale(self) -> Any:
        """The node of the scale of an fp8 activation that the first product reads now; None for others."""
        return next(iter(_shared(self.members[0].node)[1:]), None)

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
            for own, first in zip(_shared(member.node), _shared(self.members[0].node), strict=True):
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
        member = _member(node, decision)
        if member is not None:
            found.setdefault(_kind(member, values), []).append((numbers[node], member))
    return [group for members in found.values() for group in _divided(members)]


def _divided(members: Sequence[tuple[int, Member]]) -> Iterator[Group]:
    """Groups of at most as many products as a kernel takes, given with their places among all products."""
    group, last = list[Member](), 0
    for place, member in members:
        if group and (len(group) == parts.MOST or place - last > NEXT):
            yield from _several(group)
            group = []
        group.append(member)
        last = place
    yield from _several(group)


def _several(members: Sequence[Member]) -> Iterator[Group]:
    if len(members) > 1:
        yield Group(tuple(members))


def _member(node: Any, decision: Decision) -> Member | None:
    """The product as part of a group; None if it cannot be one."""
    problem, query = decision.problem, decision.query
    decided = decision.config is not None and not decision.branches
    if not decided or query.device.kind not in _GPUS or any(low != high for low, high in query.ranges.values()):
        return None
    if problem.scalars != "unit" or problem.n % STEP or not _fitting(problem):
        return None
    member = _read(node, decision)
    if member is None or not all(map(_given, member.own)) or _seen_whole(node):
        return None
    vectors = [value(vector) for vector in (member.scale, member.bias) if vector is not None]
    if problem.scales == "tensor":
        vectors = vectors[1:]  # Its scale is one number.
    dense = all(one.shape.numel() == problem.n == one.shape[-1] and one.stride(-1) == 1 for one in vectors)
    return member if dense and value(_shared(node)[0]).dim() == 2 else None


def _fitting(problem: Problem) -> bool:
    """Whether the dtypes, and the scales, are some that the kernels with several weights take."""
    if problem.scaled:
        return problem.op == "scaled_mm" and problem.scales in ("row", "tensor") and problem.out in _HALF
    return problem.a.dtype in _HALF and problem.out == problem.a.dtype


def _read(node: Any, decision: Decision) -> Member | None:
    if decision.problem.op == "scaled_mm":
        call = scaled_mm.read(node.target, node.args, node.kwargs)
        return Member(node, decision, call.b, call.scale_b, call.bias)
    if node.target is ops.register() and decision.problem.op == "mixed_mm" and decision.problem.bias is None:
        _, weight, *rest = node.args
        if any(rest[1:]):
            return None  # The scale comes first, since sums of the integers may overflow fp16.
        return Member(node, decision, weight, rest[0] if rest else None)
    if _OPS.get(node.target) != decision.problem.op:
        return None  # Or a product of a cast weight, which Inductor fuses.
    bias = node.args[0] if node.target is aten.addmm.default else None
    return Member(node, decision, node.args[-1 if bias is None else 2], bias=bias)


def _shared(node: Any) -> tuple[Any, ...]:
    """The nodes that the products of a group have in common: the activation, and in fp8 its scale."""
    if (call := _scaled(node)) is not None:
        return call.a, call.scale_a
    return (node.args[1 if node.target is aten.addmm.default else 0],)


def _scaled(node: Any) -> scaled_mm.Call | None:
    """The arguments of a product in fp8; None for others."""
    return scaled_mm.read(node.target, node.args, node.kwargs) if node.target in scaled_mm.targets() else None


def _kind(member: Member, values: Values) -> object:
    """What the products of a group have in common: the values of the activation, K, dtypes, and how the weights lie."""
    weight = value(member.weight)
    shared = tuple((values.number(_source(one)), *_lies(value(one))) for one in _shared(member.node))
    problem = _plain(member.decision.problem)
    vectors = tuple(one and value(one).dtype for one in (member.scale, member.bias))
    family = (problem.op, problem.family, vectors, str(value(member.node).device))
    return shared, family, weight.stride()


def _source(node: Any) -> Any:
    while node.target in _SAME_ORDER:
        node = node.args[0]
    return node


def _lies(seen: Any) -> tuple[object, ...]:
    return tuple(seen.shape), seen.stride(), seen.storage_offset()


def _plain(problem: Problem) -> Problem:
    """The problem without an epilogue: the products of a group store what elementwise work then reads."""
    return problem if problem.fusion in ("none", "scale") else replace(problem, fusion="none")


def _given(node: Any) -> bool:
    """Whether a node is an input or a constant of the graph, or a view of one, so that it can be read at any place."""
    return chains.base(node).op in ("placeholder", "get_attr")


def _seen_whole(node: Any) -> bool:
    """Whether something sees the product's memory itself, and not only its values: then the product must have memory of
    its own. The graph may return it, and would keep the whole group's; a product that the backward needs is returned,
    too. `as_strided` counts from the start of the memory. Custom operators that write to what they are given become
    `as_strided` after this pass."""
    storage, seen, waiting = _storages(node), {node}, [node]
    while waiting:
        for user in waiting.pop().users:
            if user.op == "output" or user.target in _BY_MEMORY or _writes(user.target):
                return True
            if user not in seen and (user.target in _VIEWS or storage & _storages(user)):
                seen.add(user)
                waiting.append(user)
    return False


def _storages(node: Any) -> set[Any]:
    """The memory behind the value of a node, which may be several tensors."""
    found = node.meta.get("val")
    tensors = found if isinstance(found, list | tuple) else [found]
    return {StorageWeakRef(one.untyped_storage()) for one in tensors if isinstance(one, torch.Tensor)}


def _writes(target: Any) -> bool:
    schema = getattr(target, "_schema", None)
    return isinstance(target, torch._ops.HigherOrderOperator) or (schema is not None and schema.is_mutable)


_VIEWS = (*chains.VIEWS, operator.getitem)
_BY_MEMORY = (aten.as_strided.default, aten.as_strided_scatter.default)
