"""Extracts a GEMM and the elementwise operators of its epilogue from a graph, as a separate graph."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.node import map_arg

from gemmdb.inductor.benchmark.packed_inputs import packed
from gemmdb.inductor.benchmark.tensors import VALUES, total_bytes
from gemmdb.inductor.benchmark.trial import Untimed
from gemmdb.inductor.match import calls, epilogues, fx, int_mm_scale
from gemmdb.key.problem import Problem

MAX_NODES = 24
"""Maximum number of operators after a GEMM that are extracted with it."""


@dataclass(frozen=True)
class Piece:
    """A GEMM and the elementwise operators after it, in graph order. `inputs`: the outside nodes that these read.
    Constants of the graph stay constants of the piece. `settled`: the nodes in an order independent of graph order,
    which Inductor's passes change. `hot`: what `warm` returns, None to find it in the graph."""

    gemm: Any
    nodes: tuple[Any, ...]
    inputs: tuple[Any, ...]
    settled: tuple[Any, ...]
    hot: tuple[bool, ...] | None = None

    @property
    def fakes(self) -> list[torch.Tensor]:
        """Return the fake tensors of the inputs that are not constants."""
        return [fx.value(node) for node in self.inputs if node.op != "get_attr"]

    @property
    def device(self) -> torch.device:
        """The device of the GEMM."""
        return torch.device(fx.value(self.gemm).device)

    @property
    def outputs(self) -> int:
        """Return the size of the outputs in bytes."""
        return total_bytes([fx.value(node) for node in self.results])

    @property
    def warm(self) -> list[bool]:
        """Return for each of `fakes` whether it is in the cache when the GEMM runs: an operator of the graph has just
        computed it, or it is the first operand. Weights come from memory."""
        if self.hot is not None:
            return list(self.hot)
        first = self.gemm.args[1 if self.gemm.target is _aten.addmm.default else 0]
        return [node is first or not given(node) for node in self.inputs if node.op != "get_attr"]

    @property
    def kinds(self) -> list[str]:
        """Return what each of `fakes` holds, for `tensors.inputs`."""
        known = {one: kind for node in self.nodes for one, kind in packed(node)}
        return [known.get(node, VALUES) for node in self.inputs if node.op != "get_attr"]

    @property
    def text(self) -> str:
        """Return a text that is equal for pieces that compile to the same code: operators, arguments, sizes,
        strides."""
        names = {node: f"%{place}" for place, node in enumerate((*self.inputs, *self.settled))}
        lines = [_described(node, names[node]) for node in self.inputs]
        for node in self.settled:
            args = map_arg((node.args, node.kwargs), lambda arg: _Name(names[arg]))
            lines.append(f"{names[node]} = {_named(node.target)}{args} {node in self.results}")
        return "\n".join(lines)

    @property
    def results(self) -> list[Any]:
        """Return the nodes whose values the rest of the graph reads."""
        inside = set(self.nodes)
        return [
            node for node in self.settled if any(user not in inside for user in node.users) and not _is_expanded(node)
        ]

    def copies(self) -> tuple[torch.fx.GraphModule, Mapping[Any, Any]]:
        """Return a new graph of this piece that takes tensors like `fakes`, and a map from each node to its copy."""
        graph = torch.fx.Graph()
        new: dict[Any, Any] = {}
        for node in self.inputs:
            if node.op == "get_attr":
                new[node] = graph.node_copy(node)
            else:
                new[node] = graph.placeholder(node.name)
                new[node].meta["val"] = node.meta["val"]
        for node in self.nodes:
            new[node] = graph.node_copy(node, lambda arg: new[arg])
        graph.output(tuple(new[node] for node in self.results))
        constants = {str(node.target): _constant(node) for node in self.inputs if node.op == "get_attr"}
        return torch.fx.GraphModule(constants, graph), new


class _Name(str):
    """A string whose repr has no quotes."""

    def __repr__(self) -> str:
        return str(self)


def computes_weight(gemm: Any) -> bool:
    """Return whether the graph computes the second operand of a GEMM: it is not an input, a constant, or a view of one.
    False for a batched GEMM such as attention scores, whose operands are always computed."""
    place = _WEIGHTS.get(gemm.target)
    return place is not None and not given(gemm.args[place])


def cut(gemm: Any, problem: Problem, places: Mapping[Any, int], symbolic: bool = False) -> Piece:
    """Return the piece of a GEMM. `places`: the index of each node in its graph. `symbolic`: sizes may be symbolic; the
    numbers that compute them are no inputs. Raises Untimed for other symbolic sizes and for inputs that are no
    tensors."""
    return cut_all([(gemm, problem)], places, symbolic)


def cut_all(gemms: Sequence[tuple[Any, Problem]], places: Mapping[Any, int], symbolic: bool = False) -> Piece:
    """Return one piece for several GEMMs, each with its problem, with the first as its GEMM. Raises Untimed as `cut`
    does."""
    nodes: set[Any] = set()
    for gemm, problem in gemms:
        own = {gemm}
        if problem.fusion != "none":
            own |= _fused(gemm, problem)
            _widen(own, gemm)
        nodes |= own
    if len(gemms) > 1:
        _close(nodes, {gemm for gemm, _ in gemms}, places)
    ordered = sorted(nodes, key=lambda node: places[node])
    for node in {*ordered, *(arg for one in ordered for arg in one.all_input_nodes)}:
        if not symbolic or not _is_number(node):
            _check(node, symbolic)
    settled = _settled(ordered, [gemm for gemm, _ in gemms])
    inputs = dict.fromkeys(arg for node in settled for arg in node.all_input_nodes if arg not in nodes)
    inputs = {node: None for node in inputs if not symbolic or not _is_number(node)}
    return Piece(gemms[0][0], tuple(ordered), tuple(inputs), tuple(settled))


def _settled(nodes: Sequence[Any], gemms: Sequence[Any]) -> list[Any]:
    """Return `nodes` in topological order; among nodes that are ready, the GEMMs come first in their order, then the
    others sorted by a description of what they compute. `nodes`: in graph order."""
    numbers = {gemm: number for number, gemm in enumerate(gemms)}
    texts: dict[Any, tuple[int, str]] = {}
    for node in nodes:
        number = numbers.get(node, len(gemms))
        args = map_arg((node.args, node.kwargs), lambda arg: texts.get(arg) or _given(arg))
        texts[node] = number, hashlib.sha256(f"{number} {_named(node.target)}{args}".encode()).hexdigest()
    left, found = dict.fromkeys(nodes), dict[Any, None]()
    while left:
        ready = [node for node in left if not any(arg in left for arg in node.all_input_nodes)]
        found[first := min(ready, key=texts.__getitem__)] = None
        del left[first]
    return list(found)


def _given(node: Any) -> str:
    return str(node.meta["val"]) if _is_number(node) else _described(node, "")


def _named(target: Any) -> str:
    """Return the name of an operator. view and reshape share one: Inductor's passes swap them."""
    return str(_aten.reshape.default if target in (_aten.view.default, _aten._unsafe_view.default) else target)


def _fused(gemm: Any, problem: Problem) -> set[Any]:
    """Return the operators after a GEMM that its kernel may compute."""
    chain = epilogues.follow(gemm)
    found = set() if chain is None or len(chain.members) > MAX_NODES else epilogues.nodes(gemm, chain)
    scaling = int_mm_scale.find(gemm) if problem.spec.integer else None
    if scaling is not None:  # The kernel applies the scales even if the following operators are not fused.
        found |= {*scaling.steps}
    if not found:
        found = {gemm}
        _follow(gemm, found)
    return found


def _follow(gemm: Any, nodes: set[Any]) -> None:
    """Add the elementwise operators and views that follow a GEMM."""
    waiting = [gemm]
    while waiting and len(nodes) <= MAX_NODES:
        for user in waiting.pop(0).users:
            if user not in nodes and (user.target in fx.RESHAPES or fx.is_pointwise(user)):
                nodes.add(user)
                waiting.append(user)


def _close(nodes: set[Any], gemms: set[Any], places: Mapping[Any, int]) -> None:
    """Add the operators between the GEMMs and the operators after them, such as a gate's activation function."""
    first = min(places[gemm] for gemm in gemms)
    waiting = list(nodes)
    while waiting:
        for one in waiting.pop().all_input_nodes:
            if one in nodes or not _depends(one, gemms, places, first):
                continue
            if len(nodes) > MAX_NODES or not (one.target in _VIEWS or fx.is_pointwise(one)):
                raise Untimed(f"{one.name} lies between the GEMMs")
            nodes.add(one)
            waiting.append(one)


def _depends(node: Any, on: set[Any], places: Mapping[Any, int], first: int) -> bool:
    """Return whether a node depends on one of the nodes `on`, whose smallest index is `first`."""
    seen, waiting = {node}, [node]
    while waiting:
        for one in waiting.pop().all_input_nodes:
            if one in on:
                return True
            if one not in seen and places[one] > first:
                seen.add(one)
                waiting.append(one)
    return False


def _widen(nodes: set[Any], gemm: Any) -> None:
    """Add operators that expand a smaller tensor to the GEMM's size, such as a scale [M, 1] to [M, N]: as an input, the
    expanded tensor would be read from memory."""
    waiting = list(nodes - {gemm})
    while waiting:
        for one in waiting.pop().all_input_nodes:
            if one not in nodes and _is_expanded(one):
                nodes.add(one)
                waiting.append(one)


def _is_expanded(node: Any) -> bool:
    """Return whether a node is an expanded tensor or a cast of one."""
    while node.op == "call_function" and node.target is torch.ops.prims.convert_element_type.default:
        node = node.args[0]
    return node.op == "call_function" and node.target is _aten.expand.default


def _is_number(node: Any) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt)


def _check(node: Any, symbolic: bool = False) -> None:
    """Raise Untimed unless a node's value is a single tensor, of fixed sizes unless `symbolic`."""
    try:
        value = fx.value(node)
    except fx.Unsupported as error:
        raise Untimed(f"{node.name} is not a tensor") from error
    if value.layout is torch.strided:
        steps = (*value.shape, *value.stride(), value.storage_offset())
        if not symbolic and not all(type(step) is int for step in steps):
            raise Untimed("its sizes are symbolic")
    elif node.op != "get_attr":
        raise Untimed(f"{node.name} is {value.layout}")


def _constant(node: Any) -> torch.Tensor:
    """Return the tensor of a constant. Raises Untimed if it has no values."""
    found = node.graph.owning_module
    for name in str(node.target).split("."):
        found = getattr(found, name, None)
    if not isinstance(found, torch.Tensor) or isinstance(found, torch._subclasses.FakeTensor):
        raise Untimed("its weight has no values here")
    return found


def given(node: Any) -> bool:
    """Return whether a node is an input or a constant of the graph, or a view of one."""
    while node.op == "call_function" and node.target in _VIEWS:
        node = node.args[0]
    return node.op in ("placeholder", "get_attr")


_aten = torch.ops.aten
_WEIGHTS = {
    _aten.mm.default: 1, _aten.addmm.default: 2, _aten._int_mm.default: 1, **dict.fromkeys(calls.scaled_targets(), 1)
}  # fmt: skip
"""Argument index of a GEMM's second operand."""
_VIEWS = (*fx.RESHAPES, _aten.permute.default, _aten.t.default, _aten.transpose.int, _aten.slice.Tensor)


def _described(node: Any, name: str) -> str:
    value = fx.value(node)
    kind = "constant" if node.op == "get_attr" else "input"
    if value.layout is not torch.strided:
        return f"{name} {kind} {value.dtype} {tuple(value.shape)} {value.layout}"
    # A tensor's offset from 16-byte alignment determines which loads the code may use.
    offset = value.storage_offset() * value.itemsize % 16
    return f"{name} {kind} {value.dtype} {tuple(value.shape)} {value.stride()} {offset} {value.device}"
