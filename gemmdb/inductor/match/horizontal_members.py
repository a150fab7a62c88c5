"""One GEMM as a member of a horizontal group: its operands, eligibility, and value numbering."""

from __future__ import annotations

import operator
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from gemmdb.inductor.match import calls, fx, linears, ops
from gemmdb.inductor.match.fx import value
from gemmdb.kernels.config import Config
from gemmdb.key.int4 import MXFP4
from gemmdb.key.problem import Problem, Query

aten = torch.ops.aten
_OPS = {aten.mm.default: "mm", aten.addmm.default: "addmm"}
_HALF, _GPUS = ("bf16", "fp16"), ("cuda",)
OWN_FIELDS = ("weight", "scale", "bias", "zeros")
"""Fields of a Member with nodes that only its GEMM reads."""
WIDTH_STEP = 16
"""The column count of every weight must be a multiple of this."""
MAX_DEPTH = 64
"""Maximum depth of compared operator chains. A quantized activation is about ten operators from the shared input."""


class Decided(Protocol):
    """The fields of a GEMM's decision that this module reads."""

    @property
    def query(self) -> Query: ...
    @property
    def config(self) -> Config | None: ...
    @property
    def branches(self) -> object: ...
    @property
    def problem(self) -> Problem: ...


D = TypeVar("D", bound=Decided)


@dataclass(frozen=True)
class Member(Generic[D]):
    """One GEMM: its node, its decision, and the nodes that only it reads. `scale` and `bias` are each a vector [N] or
    None; the scale of an fp8 weight is [1, N], or one number. `zeros`: zero points of an int4 weight, which
    `gemmdb.key.int4` describes like its scale; None if the weight has none."""

    node: Any
    decision: D
    weight: Any
    scale: Any = None
    bias: Any = None
    zeros: Any = None

    @property
    def own(self) -> tuple[Any, ...]:
        """The nodes that only this GEMM reads."""
        return tuple(node for node in map(vars(self).get, OWN_FIELDS) if node is not None)

    @property
    def width(self) -> int:
        """N."""
        return self.decision.problem.n


def read(node: Any, decision: D) -> Member[D] | None:
    """Return the GEMM as a member of a group; None if it is not eligible."""
    problem, query = decision.problem, decision.query
    decided = decision.config is not None and not decision.branches
    if not decided or query.device.kind not in _GPUS or query.symbolic:
        return None
    if problem.scalars != "unit" or problem.n % WIDTH_STEP or not _has_kernel(problem):
        return None
    member = _read(node, decision)
    # The member's own operands must be inputs or constants, or views of one, so they can be read anywhere.
    if member is None or any(fx.base(one).op not in ("placeholder", "get_attr") for one in member.own):
        return None
    if _exposes_memory(node) or not all(map(_is_fixed, (*shared(node), *member.own))):
        return None
    # The scales of an int4 weight are checked at lowering.
    scale = None if problem.scales == "tensor" or problem.int4 is not None else member.scale
    vectors = [value(one) for one in (scale, member.bias) if one is not None]
    dense = all(one.shape.numel() == problem.n == one.shape[-1] and one.stride(-1) == 1 for one in vectors)
    return member if dense and value(shared(node)[0]).dim() == 2 else None


def _has_kernel(problem: Problem) -> bool:
    """Whether the multi-weight kernels support the dtypes, scales and packing. Those of packings whose numbers or zero
    points have an order in words, of eight bits and of MXFP4 were never measured."""
    own = problem.int4
    if own is not None and (own.along_n or own.zeros_in_words or own.bits == 8 or own.packing == MXFP4):
        return False
    if problem.scaled:
        return problem.op == "scaled_mm" and problem.scales in ("row", "tensor") and problem.out in _HALF
    return problem.a.dtype in _HALF and problem.out == problem.a.dtype


def _read(node: Any, decision: D) -> Member[D] | None:
    problem, target = decision.problem, node.target
    if problem.op == "scaled_mm":
        call = calls.read(target, node.args, node.kwargs)
        return Member(node, decision, call.b, call.scales[1], call.bias)
    if problem.int4 is not None:
        if problem.bias is None and target is linears.TILED_MM:
            return Member(node, decision, node.args[1], node.args[3])
        if problem.bias is None and target is ops.overload("int4_mm"):
            return Member(node, decision, node.args[1], node.args[2], zeros=node.args[3])
        return None  # The program computes the weight.
    if target is ops.overload("mixed_mm") and problem.op == "mixed_mm" and problem.bias is None:
        _, weight, *rest = node.args
        if any(rest[1:]):
            return None  # The scale comes first, because sums of the integers may overflow fp16.
        return Member(node, decision, weight, rest[0] if rest else None)
    if _OPS.get(target) != problem.op:
        return None  # Or a GEMM of a cast weight, which Inductor fuses.
    bias = node.args[0] if target is aten.addmm.default else None
    return Member(node, decision, node.args[-1 if bias is None else 2], bias=bias)


def shared(node: Any) -> tuple[Any, ...]:
    """Return the shared nodes of a group: the activation, and in fp8 its scale."""
    if node.target in calls.scaled_targets():
        call = calls.read(node.target, node.args, node.kwargs)
        return call.a, call.scales[0]
    return (node.args[1 if node.target is aten.addmm.default else 0],)


def _is_fixed(node: Any) -> bool:
    """Whether a tensor's sizes, strides and offset are plain numbers."""
    found = value(node)
    return all(type(one) is int for one in (*found.shape, *found.stride(), found.storage_offset()))


def _exposes_memory(node: Any) -> bool:
    """Whether the GEMM needs its own memory because something uses the memory itself, not only the values. The graph
    may return it, which would keep the whole group's memory alive; GEMMs saved for the backward are returned too.
    `as_strided` counts from the start of the memory. Custom operators that write to their inputs become `as_strided`
    after this pass."""
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
    """Return the memory of a node's value, which may be several tensors."""
    found = node.meta.get("val")
    tensors = found if isinstance(found, list | tuple) else [found]
    return {StorageWeakRef(one.untyped_storage()) for one in tensors if isinstance(one, torch.Tensor)}


def _writes(target: Any) -> bool:
    schema = getattr(target, "_schema", None)
    return isinstance(target, torch._ops.HigherOrderOperator) or (schema is not None and schema.is_mutable)


_VIEWS = (*fx.VIEWS, operator.getitem)
_BY_MEMORY = (aten.as_strided.default, aten.as_strided_scatter.default)


class Values:
    """Value numbering: two nodes of a graph with the same number have the same value, as long as the graph does not
    change. Programs quantize one activation again for each layer that reads it."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[Any, int] = {}

    def number(self, node: Any, depth: int = MAX_DEPTH) -> int:
        """Return the number of a node's value: derived from the operator and its inputs if the operator is
        deterministic, else a unique number."""
        if node not in self._known:
            key: Hashable = node
            if depth and _is_repeatable(node):
                args = torch.fx.map_arg((node.args, node.kwargs), lambda one: _Number(self.number(one, depth - 1)))
                key = str(node.target), repr(args)
            self._known[node] = self._numbers.setdefault(key, len(self._numbers))
        return self._known[node]


class _Number(int):
    """Return the number of a value among plain-number arguments."""

    def __repr__(self) -> str:
        return f"%{int(self)}"


def _is_repeatable(node: Any) -> bool:
    """Whether an operator computes the same value from the same inputs: elementwise work, reductions, views."""
    if node.op != "call_function" or torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
        return False
    return fx.is_pointwise(node) or fx.is_reduction(node) or node.target in fx.VIEWS
