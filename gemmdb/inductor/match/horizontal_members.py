"""One product of a graph as part of a group: what it multiplies, and whether it can be part of one at all."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.match import calls, fx, int4, ops
from gemmdb.inductor.match.fx import value
from gemmdb.key.problem import Problem

aten = torch.ops.aten
_OPS = {aten.mm.default: "mm", aten.addmm.default: "addmm"}
_HALF, _GPUS = ("bf16", "fp16"), ("cuda",)
OWN = ("weight", "scale", "bias", "zeros")
"""The fields of a Member that are nodes which only its product reads."""
STEP = 16
"""Every weight has a multiple of so many columns."""


@dataclass(frozen=True)
class Member:
    """One product: its node, what was decided, and the nodes of what only it reads. Each of `scale` and `bias` is a
    vector [N] or None; the scale of an fp8 weight is [1, N], or one number. `zeros`: the zero points of an int4 weight,
    which `gemmdb.key.int4` describes like its scale; None where it has none of its own."""

    node: Any
    decision: Decision
    weight: Any
    scale: Any = None
    bias: Any = None
    zeros: Any = None

    @property
    def own(self) -> tuple[Any, ...]:
        """The nodes that only this product reads."""
        return tuple(node for node in map(vars(self).get, OWN) if node is not None)

    @property
    def width(self) -> int:
        """N."""
        return self.decision.problem.n


def read(node: Any, decision: Decision) -> Member | None:
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
    if not all(map(_is_fixed, (*shared(node), *member.own))) or value(shared(node)[0]).dim() != 2:
        return None
    return member if all(map(_is_vector, _vectors(member))) else None


def _is_fixed(node: Any) -> bool:
    """Whether a tensor's sizes, strides and offset are numbers."""
    found = value(node)
    return all(type(one) is int for one in (*found.shape, *found.stride(), found.storage_offset()))


def _vectors(member: Member) -> list[tuple[Any, int]]:
    """The nodes that have to be vectors over the columns, each with N. The scales of an int4 weight are checked when it
    is lowered."""
    problem = member.decision.problem
    scale = None if problem.scales == "tensor" or problem.int4 is not None else member.scale
    return [(node, problem.n) for node in (scale, member.bias) if node is not None]


def _is_vector(pair: tuple[Any, int]) -> bool:
    found, columns = value(pair[0]), pair[1]
    return bool(found.shape.numel() == columns == found.shape[-1] and found.stride(-1) == 1)


def _fitting(problem: Problem) -> bool:
    """Whether the dtypes, and the scales, are some that the kernels with several weights take."""
    if problem.scaled:
        return problem.op == "scaled_mm" and problem.scales in ("row", "tensor") and problem.out in _HALF
    return problem.a.dtype in _HALF and problem.out == problem.a.dtype


def _read(node: Any, decision: Decision) -> Member | None:
    if decision.problem.op == "scaled_mm":
        call = calls.read(node.target, node.args, node.kwargs)
        return Member(node, decision, call.b, call.scales[1], call.bias)
    if decision.problem.int4 is not None:
        return _int4(node, decision)
    if node.target is ops.register() and decision.problem.op == "mixed_mm" and decision.problem.bias is None:
        _, weight, *rest = node.args
        if any(rest[1:]):
            return None  # The scale comes first, since sums of the integers may overflow fp16.
        return Member(node, decision, weight, rest[0] if rest else None)
    if _OPS.get(node.target) != decision.problem.op:
        return None  # Or a product of a cast weight, which Inductor fuses.
    bias = node.args[0] if node.target is aten.addmm.default else None
    return Member(node, decision, node.args[-1 if bias is None else 2], bias=bias)


def _int4(node: Any, decision: Decision) -> Member | None:
    if decision.problem.bias is not None:
        return None
    if node.target is int4.TILED_MM:
        return Member(node, decision, node.args[1], node.args[3])
    if node.target is ops.register_int4():
        return Member(node, decision, node.args[1], node.args[2], zeros=node.args[3])
    return None  # The program makes the weight.


def shared(node: Any) -> tuple[Any, ...]:
    """The nodes that the products of a group have in common: the activation, and in fp8 its scale."""
    if (call := _scaled(node)) is not None:
        return call.a, call.scales[0]
    return (node.args[1 if node.target is aten.addmm.default else 0],)


def _scaled(node: Any) -> calls.Call | None:
    """The arguments of a product in fp8; None for others."""
    return calls.read(node.target, node.args, node.kwargs) if node.target in calls.scaled_targets() else None


def _given(node: Any) -> bool:
    """Whether a node is an input or a constant of the graph, or a view of one, so that it can be read at any place."""
    return fx.base(node).op in ("placeholder", "get_attr")


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


_VIEWS = (*fx.VIEWS, operator.getitem)
_BY_MEMORY = (aten.as_strided.default, aten.as_strided_scatter.default)
