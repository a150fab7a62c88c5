"""The elementwise operators after a product that Inductor fuses into the product's kernel."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from gemmdb.inductor.match import extract
from gemmdb.inductor.match.extract import value

FARTHEST = 64
"""How many operators to look at. A chain of that length is a kernel by itself."""
ANCESTORS = 256
"""How many operators to look at to learn whether a tensor depends on a product."""
aten, prims = torch.ops.aten, torch.ops.prims
VIEWS = (*extract.VIEWS, aten.permute.default, aten.transpose.int, aten.t.default)
"""Operators that change how memory is seen. Elementwise work behind them still fits into the product's kernel."""
SOFTMAX = "prims.prepare_softmax_online.default"
"""Inductor's operator for the maximum and sum of a softmax on a GPU. It has no tag."""
_PRODUCTS = ("aten.mm.", "aten.addmm.", "aten.bmm.", "aten.baddbmm.", "aten._int_mm.", "aten._scaled_mm",
             "aten._grouped_mm", "aten._scaled_grouped_mm", "mkl.", "mkldnn._linear", "gemmdb.")  # fmt: skip


@dataclass(frozen=True)
class Chain:
    """The epilogue of a product. `members`: its operators that work on the product's values, in the order of the graph.
    `beside`: elementwise operators on other tensors, which are computed on the way. `reads`: the full-size tensors that
    it reads. `stored`: the members whose values something outside reads. `kept`: whether something outside reads the
    product itself."""

    members: tuple[Any, ...]
    beside: tuple[Any, ...]
    reads: tuple[Any, ...]
    stored: tuple[Any, ...]
    kept: bool


def follow(product: Any) -> Chain | None:
    """The epilogue of a product; None if nothing of it is stored."""
    found = _fused(product)
    # What only feeds operators of other kernels is computed there, and nothing is stored here.
    stored = [node for node in found if any(_takes(user) for user in _outside(node, found))]
    members = _leading(stored, found)
    if not members:
        return None
    beside, reads = _others(product, members)
    kept = next(_outside(product, members), None) is not None
    return Chain(tuple(sorted(members)), beside, reads, tuple(stored), kept)


def nodes(product: Any, chain: Chain) -> set[Any]:
    """All operators of an epilogue: its members, those on other tensors, and the views between these."""
    found = {*chain.members, *chain.beside}
    made = found | {product}
    views: set[Any] = set()
    for node in found:
        for one in node.all_input_nodes:
            if base(one) in made:
                while one not in made:
                    views.add(one)
                    one = one.args[0]
    return found | views


def users(node: Any) -> Iterator[tuple[Any, Any]]:
    """(user, the node through which it reads) of a value, through views."""
    for user in node.users:
        if user.target in VIEWS:
            yield from users(user)
        else:
            yield user, node


def base(node: Any) -> Any:
    """The node whose memory a node sees, through views."""
    while node.target in VIEWS:
        node = node.args[0]
    return node


def elements(node: Any) -> int:
    """The number of elements of a node's value; 0 if it is not a tensor, or if nothing is known of its size."""
    try:
        return math.prod(map(extract.hint, value(node).shape))
    except extract.Unsupported:
        return 0


def _fused(product: Any) -> dict[Any, None]:
    """The elementwise operators that follow, without those that Inductor fuses into a later product, or that have to
    wait for a value which itself depends on these."""
    size, found = elements(product), {product: None}
    waiting, seen = [product], {product}
    while waiting and len(seen) <= FARTHEST:
        for user, _ in users(waiting.pop(0)):
            if user not in seen and extract.is_pointwise(user) and elements(user) == size:
                seen.add(user)
                waiting.append(user)
    for node in sorted(seen - {product}):
        if all(_available(base(one), product, seen, found) for one in node.all_input_nodes):
            found[node] = None
    del found[product]
    return found


def _available(operand: Any, product: Any, followers: set[Any], fused: dict[Any, None]) -> bool:
    """Whether an operand is a value of the chain, or is computed without the chain and by no later product whose kernel
    would take the operator as its own epilogue: Inductor fuses it into the nearest one."""
    if operand in followers:
        return operand in fused
    size = elements(product)
    waiting, seen = [(operand, True)], {operand}
    while waiting:
        node, direct = waiting.pop()
        if node in followers:
            return False
        if node < product:
            continue
        if direct and str(node.target).startswith(_PRODUCTS) and elements(node) == size:
            return False
        if len(seen) > ANCESTORS:
            return False
        direct = direct and (node.target in VIEWS or extract.is_pointwise(node))
        for one in node.all_input_nodes:
            if one not in seen:
                seen.add(one)
                waiting.append((one, direct))
    return True


def _outside(node: Any, inside: Any) -> Iterator[Any]:
    return (user for user, _ in users(node) if user not in inside)


def _takes(user: Any) -> bool:
    """Whether a user outside reads the value from memory. Other kernels compute elementwise work on their inputs
    anew."""
    if user.op != "call_function":
        return True
    return not extract.is_pointwise(user) and not reduces(user)


def reduces(node: Any) -> bool:
    """Whether an operator is a reduction."""
    return str(node.target) == SOFTMAX or torch.Tag.reduction in getattr(node.target, "tags", ())


def _leading(stored: list[Any], found: dict[Any, None]) -> set[Any]:
    """The operators that the stored ones are computed from."""
    members, waiting = set(stored), list(stored)
    while waiting:
        for one in map(base, waiting.pop().all_input_nodes):
            if one in found and one not in members:
                members.add(one)
                waiting.append(one)
    return members


def _others(product: Any, members: set[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """(elementwise operators on other tensors that only the members use, full-size tensors that are read)."""
    size = elements(product)
    beside: dict[Any, None] = {}
    reads: dict[Any, None] = {}
    waiting = {base(one) for node in members for one in node.all_input_nodes}
    while waiting and len(beside) <= FARTHEST:
        # The last one first: whatever uses it was looked at before.
        node = max(waiting)
        waiting.remove(node)
        if node is product or node in members or elements(node) < size or _made(node):
            continue
        alone = all(user in members or user in beside for user, _ in users(node))
        if _random(node) or (extract.is_pointwise(node) and (alone or not _reads_memory(node, size))):
            beside[node] = None
            waiting |= {base(one) for one in node.all_input_nodes}
        else:
            reads[node] = None
    return tuple(beside), tuple(reads)


def _reads_memory(node: Any, size: int) -> bool:
    """Whether an elementwise operator reads a full-size tensor, directly."""
    inputs = map(base, node.all_input_nodes)
    return any(elements(one) >= size and not _made(one) and not _random(one) for one in inputs)


def _random(node: Any) -> bool:
    return str(node.target).startswith("prims.inductor_rand")


def _made(node: Any) -> bool:
    """Whether a tensor is made from nothing, such as one that is full of one number: other kernels make it anew."""
    if node.op != "call_function" or node.all_input_nodes:
        return False
    return torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ())
