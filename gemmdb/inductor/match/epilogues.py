"""The elementwise operators after a GEMM that Inductor fuses into its kernel, and their class in the key."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from gemmdb.inductor.lower.adapter import symbolic
from gemmdb.inductor.match import extract, fx
from gemmdb.inductor.match.fx import base, value
from gemmdb.key.epilogue import ARITHMETIC, ORDERS, READS, Epilogue, parse, stored_as
from gemmdb.key.layout import ITEM_SIZES

MAX_CHAIN = 64
"""How many operators to look at. A chain of that length is a kernel by itself."""
MAX_ANCESTORS = 256
"""How many operators to look at to learn whether a tensor depends on a GEMM."""
_GEMMS = ("aten.mm.", "aten.addmm.", "aten.bmm.", "aten.baddbmm.", "aten._int_mm.", "aten._scaled_mm",
          "aten._grouped_mm", "aten._scaled_grouped_mm", "mkl.", "mkldnn._linear", "gemmdb.")  # fmt: skip
LIGHT = frozenset({
    "abs", "add", "addcmul", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "ceil", "clamp",
    "clamp_max", "clamp_min", "clone", "convert_element_type", "copysign", "div", "eq", "floor", "fmax", "fmin",
    "frac", "ge", "gt", "hardshrink", "hardsigmoid", "hardtanh", "heaviside", "isfinite", "isinf", "isnan", "le",
    "leaky_relu", "lerp", "logical_and", "logical_not", "logical_or", "logical_xor", "lt", "masked_fill",
    "maximum", "minimum", "mul", "native_dropout_backward", "ne", "neg", "positive", "reciprocal", "relu",
    "round", "rsqrt", "rsub", "sgn", "sign", "signbit", "softshrink", "sqrt", "square", "sub", "threshold",
    "threshold_backward", "true_divide", "trunc", "where", "_to_copy",
})  # fmt: skip
"""Elementwise operators of a few instructions per element. All others count as exponentials."""
POWERS = (-1, -0.5, 0.5, 1, 2, 3, 4)
"""Exponents that take a few multiplications, or a root."""
LIGHT_ATTRIBUTES = ("relu", "leaky_relu", "hardtanh", "hardswish", "hardsigmoid")
"""Activations of oneDNN's linears that are light arithmetic."""


@dataclass(frozen=True)
class Chain:
    """The epilogue of a GEMM. `members`: its operators that work on the GEMM's values, in the order of the graph.
    `beside`: elementwise operators on other tensors, which are computed in the same kernel. `reads`: the full-size
    tensors that it reads. `stored`: the members whose values something outside reads. `kept`: whether something outside
    reads the GEMM itself."""

    members: tuple[Any, ...]
    beside: tuple[Any, ...]
    reads: tuple[Any, ...]
    stored: tuple[Any, ...]
    kept: bool


def fusion(node: Any) -> str:
    """The text of the class of the GEMM's epilogue; `none` without one.

    Elementwise work that leads to a reduction of rows, such as a residual sum before a norm, becomes part of the
    reduction's kernel, beside ATen too, so only the GEMM itself should be compared. The same holds for work that a
    later GEMM takes: of the two GEMMs of a gated layer, the second has the epilogue. Inductor also fuses nothing into
    an output of data-dependent size.
    """
    if any(symbolic.from_data(size) for size in value(node).shape) or _leads_to_reduction(node):
        return "none"
    chain = follow(node)
    if chain is None:
        return "none"
    places = _places(node, chain)
    size = max(value(one).itemsize for one in chain.stored)
    out = extract.DTYPES.get(value(node).dtype, "")
    return Epilogue(
        arithmetic([*chain.members, *chain.beside]),
        min(len(chain.reads), READS[-1]),
        chain.kept,
        ORDERS[max(places[one] for one in chain.stored)],
        stored_as(size, out) if out in ITEM_SIZES else "",
    ).text


def joined(node: Any, first: str, reads: int = 0) -> str:
    """The same for a linear of oneDNN that computes elementwise operators itself, with what follows it. `first`: their
    place in ARITHMETIC; `reads`: the full-size tensors that they read. What may be stored in between is not the GEMM's
    output."""
    try:
        text = fusion(node)
    except fx.Unsupported:  # Inductor's patterns may leave no metadata.
        text = "none"
    rest = Epilogue() if text == "none" else parse(text)
    most = max(first, rest.arithmetic, key=ARITHMETIC.index)
    return replace(rest, arithmetic=most, reads=min(reads + rest.reads, READS[-1]), kept=False).text


def arithmetic(nodes: Iterable[Any]) -> str:
    """The costliest arithmetic of operators, of ARITHMETIC."""
    return ARITHMETIC[max(map(_effort, nodes), default=0)]


def _effort(node: Any) -> int:
    """The place in ARITHMETIC of what an operator does."""
    if _is_random(node):
        return ARITHMETIC.index("random")
    name = str(node.target).partition(".")[2].partition(".")[0]
    power = name == "pow" and len(node.args) > 1 and node.args[1] in POWERS
    return 0 if power or name in LIGHT else 1


def _places(gemm: Any, chain: Chain) -> dict[Any, int]:
    """For the GEMM and each member, the place in ORDERS of its order in memory: how it differs from the GEMM's. An
    operator that keeps the strides of what it reads keeps the order."""
    places = {gemm: 0}
    for node in chain.members:
        steps = [0]
        for one in node.all_input_nodes:
            if (source := base(one)) in places:
                steps += [places[source], _reordering(one, node)]
        places[node] = max(steps)
    return places


def _reordering(seen: Any, node: Any) -> int:
    """The place in ORDERS of the step from `seen`, a value of the chain or a view of one, to `node`, computed from
    it."""
    before, after = _order(seen), _order(node)
    if before == after or len(before) != len(after) or value(seen).dim() != value(node).dim():
        return 0
    return ORDERS.index("permuted" if before[-1] == after[-1] else "transposed")


def _order(node: Any) -> list[int]:
    """The dimensions larger than 1, those with the largest strides first; empty if nothing is known of them."""
    found = value(node)
    try:
        sizes, strides = (tuple(map(extract.hint, numbers)) for numbers in (found.shape, found.stride()))
    except fx.Unsupported:
        return []
    return sorted((dim for dim, size in enumerate(sizes) if size > 1), key=lambda dim: -strides[dim])


def _leads_to_reduction(gemm: Any) -> bool:
    """Whether the GEMM, or elementwise operators after it, end in a reduction of rows."""
    waiting, seen = [gemm], {gemm}
    while waiting and len(seen) <= MAX_CHAIN:
        for user in fx.users(waiting.pop()):
            if _reduces_rows(user):
                return True
            if user not in seen and fx.is_pointwise(user):
                seen.add(user)
                waiting.append(user)
    return False


def _reduces_rows(node: Any) -> bool:
    """Whether `node` reduces the last dimension of its operand, or all dimensions."""
    if node.op != "call_function" or not fx.is_reduction(node):
        return False
    # `dim` is not always the second argument: for a norm, the second is the order.
    names = [argument.name for argument in node.target._schema.arguments]
    place = names.index("dim") if "dim" in names else len(node.args)
    dims = node.kwargs.get("dim", node.args[place] if place < len(node.args) else None)
    last = value(node.args[0]).dim() - 1
    dims = [dims] if isinstance(dims, int) else dims
    return not dims or any(dim in (-1, last) for dim in dims)


def follow(gemm: Any) -> Chain | None:
    """The epilogue of a GEMM; None if nothing of it is stored."""
    found = _fused(gemm)
    # What only feeds operators of other kernels is computed there, and nothing is stored here.
    stored = [node for node in found if any(map(_reads_memory, _outside(node, found)))]
    members, waiting = set(stored), list(stored)
    while waiting:
        for one in map(base, waiting.pop().all_input_nodes):
            if one in found and one not in members:
                members.add(one)
                waiting.append(one)
    if not members:
        return None
    beside, reads = _others(gemm, members)
    kept = next(_outside(gemm, members), None) is not None
    return Chain(tuple(sorted(members)), beside, reads, tuple(stored), kept)


def nodes(gemm: Any, chain: Chain) -> set[Any]:
    """All operators of an epilogue: its members, those on other tensors, and the views between these."""
    found = {*chain.members, *chain.beside}
    computed = found | {gemm}
    views: set[Any] = set()
    for node in found:
        for one in node.all_input_nodes:
            if base(one) in computed:
                while one not in computed:
                    views.add(one)
                    one = one.args[0]
    return found | views


def elements(node: Any) -> int:
    """The number of elements of a node's value; 0 if it is not a tensor, or if nothing is known of its size."""
    try:
        return math.prod(map(extract.hint, value(node).shape))
    except fx.Unsupported:
        return 0


def _fused(gemm: Any) -> dict[Any, None]:
    """The elementwise operators that follow, without those that Inductor fuses into a later GEMM, or that have to wait
    for a value which itself depends on these."""
    size, found = elements(gemm), {gemm: None}
    waiting, seen = [gemm], {gemm}
    while waiting and len(seen) <= MAX_CHAIN:
        for user in fx.users(waiting.pop(0), fx.VIEWS):
            if user not in seen and fx.is_pointwise(user) and elements(user) == size:
                seen.add(user)
                waiting.append(user)
    for node in sorted(seen - {gemm}):
        if all(_is_available(base(one), gemm, seen, found) for one in node.all_input_nodes):
            found[node] = None
    del found[gemm]
    return found


def _is_available(operand: Any, gemm: Any, followers: set[Any], fused: dict[Any, None]) -> bool:
    """Whether an operand is a value of the chain, or is computed without the chain and by no later GEMM whose kernel
    would take the operator as its own epilogue: Inductor fuses it into the nearest one."""
    if operand in followers:
        return operand in fused
    size = elements(gemm)
    waiting, seen = [(operand, True)], {operand}
    while waiting:
        node, direct = waiting.pop()
        if node in followers:
            return False
        if node < gemm:
            continue
        if direct and str(node.target).startswith(_GEMMS) and elements(node) == size:
            return False
        if len(seen) > MAX_ANCESTORS:
            return False
        direct = direct and (node.target in fx.VIEWS or fx.is_pointwise(node))
        for one in node.all_input_nodes:
            if one not in seen:
                seen.add(one)
                waiting.append((one, direct))
    return True


def _outside(node: Any, inside: Any) -> Iterator[Any]:
    return (user for user in fx.users(node, fx.VIEWS) if user not in inside)


def _reads_memory(user: Any) -> bool:
    """Whether a user reads a value from memory. Other kernels compute elementwise work on their inputs again."""
    return user.op != "call_function" or not (fx.is_pointwise(user) or fx.is_reduction(user))


def _others(gemm: Any, members: set[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """(elementwise operators on other tensors that only the members use, full-size tensors that are read)."""
    size = elements(gemm)
    beside: dict[Any, None] = {}
    reads: dict[Any, None] = {}
    waiting = {base(one) for node in members for one in node.all_input_nodes}
    while waiting and len(beside) <= MAX_CHAIN:
        # The last one first: whatever uses it was looked at before.
        node = max(waiting)
        waiting.remove(node)
        if node is gemm or node in members or elements(node) < size or _is_filled(node):
            continue
        inputs = [base(one) for one in node.all_input_nodes]
        reads_memory = any(elements(one) >= size and not _is_filled(one) and not _is_random(one) for one in inputs)
        alone = all(user in members or user in beside for user in fx.users(node, fx.VIEWS))
        if _is_random(node) or (fx.is_pointwise(node) and (alone or not reads_memory)):
            beside[node] = None
            waiting.update(inputs)
        else:
            reads[node] = None
    return tuple(beside), tuple(reads)


def _is_random(node: Any) -> bool:
    return str(node.target).startswith("prims.inductor_rand")


def _is_filled(node: Any) -> bool:
    """Whether a tensor is made from nothing, such as one that is full of one number: other kernels make it again."""
    if node.op != "call_function" or node.all_input_nodes:
        return False
    return torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ())
