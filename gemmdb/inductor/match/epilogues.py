"""Elementwise operators that Inductor fuses into a GEMM's kernel, and the epilogue class in the key."""

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
"""Maximum number of operators to visit. A longer chain gets its own kernel."""
MAX_ANCESTORS = 256
"""Maximum number of operators to visit to check whether a tensor depends on a GEMM."""
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
"""Exponents that cost a few multiplications or a root."""
LIGHT_ATTRIBUTES = ("relu", "leaky_relu", "hardtanh", "hardswish", "hardsigmoid")
"""oneDNN linear activations that count as light arithmetic."""


@dataclass(frozen=True)
class Chain:
    """The epilogue of a GEMM. `members`: operators on the GEMM's values, in graph order. `beside`: elementwise
    operators on other tensors, computed in the same kernel. `reads`: full-size input tensors. `stored`: members whose
    values are read outside the epilogue. `kept`: whether the GEMM's own output is read outside."""

    members: tuple[Any, ...]
    beside: tuple[Any, ...]
    reads: tuple[Any, ...]
    stored: tuple[Any, ...]
    kept: bool


def fusion(node: Any) -> str:
    """Return the text of a GEMM's epilogue class; `none` without an epilogue.

    Elementwise work before a row reduction, such as a residual sum before a norm, is fused into the reduction's kernel,
    with ATen too, so only the GEMM itself should be compared. The same holds for work that a later GEMM takes: in a
    gated layer, the second GEMM has the epilogue. Inductor fuses nothing into an output of data-dependent size.
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
    """Return the epilogue class of a oneDNN linear with built-in elementwise operators, including what follows it.
    `first`: the operators' index in ARITHMETIC; `reads`: full-size tensors that they read. Intermediate stores are not
    the GEMM's output."""
    try:
        text = fusion(node)
    except fx.Unsupported:  # Inductor's patterns may drop metadata.
        text = "none"
    rest = Epilogue() if text == "none" else parse(text)
    most = max(first, rest.arithmetic, key=ARITHMETIC.index)
    return replace(rest, arithmetic=most, reads=min(reads + rest.reads, READS[-1]), kept=False).text


def arithmetic(nodes: Iterable[Any]) -> str:
    """Return the most expensive arithmetic class among operators, from ARITHMETIC."""
    return ARITHMETIC[max(map(_effort, nodes), default=0)]


def _effort(node: Any) -> int:
    """Return the index of an operator in ARITHMETIC."""
    if _is_random(node):
        return ARITHMETIC.index("random")
    name = str(node.target).partition(".")[2].partition(".")[0]
    power = name == "pow" and len(node.args) > 1 and node.args[1] in POWERS
    return 0 if power or name in LIGHT else 1


def _places(gemm: Any, chain: Chain) -> dict[Any, int]:
    """Return, for the GEMM and each member, the index in ORDERS of its memory order relative to the GEMM's. An operator
    that keeps its inputs' strides keeps the order."""
    places = {gemm: 0}
    for node in chain.members:
        steps = [0]
        for one in node.all_input_nodes:
            if (source := base(one)) in places:
                steps += [places[source], _reordering(one, node)]
        places[node] = max(steps)
    return places


def _reordering(seen: Any, node: Any) -> int:
    """Return the index in ORDERS of the step from `seen`, a value of the chain or a view of it, to `node`, computed
    from it."""
    before, after = _order(seen), _order(node)
    if before == after or len(before) != len(after) or value(seen).dim() != value(node).dim():
        return 0
    return ORDERS.index("permuted" if before[-1] == after[-1] else "transposed")


def _order(node: Any) -> list[int]:
    """Return the dimensions larger than 1, largest stride first; empty if unknown."""
    found = value(node)
    try:
        sizes, strides = (tuple(map(extract.hint, numbers)) for numbers in (found.shape, found.stride()))
    except fx.Unsupported:
        return []
    return sorted((dim for dim, size in enumerate(sizes) if size > 1), key=lambda dim: -strides[dim])


def _leads_to_reduction(gemm: Any) -> bool:
    """Whether the GEMM, or the elementwise operators after it, end in a row reduction."""
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
    """Return the epilogue of a GEMM; None if none of its values is stored."""
    found = _fused(gemm)
    # Operators that only feed other kernels are computed in those, and nothing is stored here.
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
    """Return all operators of an epilogue: members, operators on other tensors, and the views between them."""
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
    """Return the number of elements of a node's value; 0 for anything but a tensor, or if unknown."""
    try:
        return math.prod(map(extract.hint, value(node).shape))
    except fx.Unsupported:
        return 0


def _fused(gemm: Any) -> dict[Any, None]:
    """Return the elementwise operators that follow, except those that Inductor fuses into a later GEMM, and those that
    wait for a value that depends on these operators."""
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
    """Whether an operand is a value of the chain, or is computed without the chain and without a later GEMM that would
    take the operator as its own epilogue: Inductor fuses into the nearest GEMM."""
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
    """Whether a user reads a value from memory. Other kernels recompute elementwise work on their inputs."""
    return user.op != "call_function" or not (fx.is_pointwise(user) or fx.is_reduction(user))


def _others(gemm: Any, members: set[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return (elementwise operators on other tensors that only the members use, full-size input tensors)."""
    size = elements(gemm)
    beside: dict[Any, None] = {}
    reads: dict[Any, None] = {}
    waiting = {base(one) for node in members for one in node.all_input_nodes}
    while waiting and len(beside) <= MAX_CHAIN:
        # Visit in reverse order, so all users of an operator come first.
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
    """Whether a tensor has no inputs, such as one filled with a constant: other kernels recompute it."""
    if node.op != "call_function" or node.all_input_nodes:
        return False
    return torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ())
