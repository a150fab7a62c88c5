"""The fusion context of a product: the class of the elementwise work that becomes the epilogue of its kernel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from gemmdb.inductor.lower.adapter import guessing
from gemmdb.inductor.match import chains, extract
from gemmdb.inductor.match.chains import Chain
from gemmdb.inductor.match.extract import value
from gemmdb.key.epilogue import ARITHMETIC, ORDERS, READS, Epilogue, parse, stored_as
from gemmdb.key.layout import ITEM_SIZES

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
ATTRIBUTES = ("relu", "leaky_relu", "hardtanh", "hardswish", "hardsigmoid")
"""Activations of oneDNN's linears that are light arithmetic."""


def fusion(node: Any) -> str:
    """The text of the class of the product's epilogue; `none` without one.

    Elementwise work that leads to a reduction of rows, such as a residual sum before a norm, becomes part of the
    reduction's kernel: Inductor fuses these two before it considers the product's template, and does the same beside
    ATen. Then a kernel with an epilogue saves nothing, and only the product itself should be compared. The same holds
    for work that a later product takes: of the two products of a gated layer, the second has the epilogue. Inductor
    also fuses nothing into an output whose size comes out of data, because it sees no bytes that this would save.
    """
    if any(guessing.from_data(size) for size in value(node).shape):
        return "none"
    if _reduced(node):
        return "none"
    chain = chains.follow(node)
    return "none" if chain is None else _described(node, chain).text


def behind_activation(node: Any, name: str) -> str:
    """The same for a linear of oneDNN that computes the activation `name` itself, with what follows it."""
    return _joined(node, Epilogue("light" if name in ATTRIBUTES else "math"))


def behind_operators(node: Any, operators: Iterable[Any], reads: int) -> str:
    """The same for a linear of oneDNN that computes elementwise operators itself, which read full-size tensors."""
    return _joined(node, Epilogue(_arithmetic(operators), min(reads, READS[-1])))


def _joined(node: Any, first: Epilogue) -> str:
    """The class of a first part and of what follows it. What may be stored in between is not the product."""
    try:
        text = fusion(node)
    except extract.Unsupported:  # Inductor's patterns may leave no metadata.
        text = "none"
    rest = Epilogue() if text == "none" else parse(text)
    arithmetic = max(first.arithmetic, rest.arithmetic, key=ARITHMETIC.index)
    return replace(rest, arithmetic=arithmetic, reads=min(first.reads + rest.reads, READS[-1]), kept=False).text


def _described(node: Any, chain: Chain) -> Epilogue:
    places = _places(node, chain)
    size = max(value(one).itemsize for one in chain.stored)
    out = extract.DTYPES.get(value(node).dtype, "")
    return Epilogue(
        _arithmetic([*chain.members, *chain.beside]),
        min(len(chain.reads), READS[-1]),
        chain.kept,
        ORDERS[max(places[one] for one in chain.stored)],
        stored_as(size, out) if out in ITEM_SIZES else "",
    )


def _arithmetic(nodes: Iterable[Any]) -> str:
    return ARITHMETIC[max(map(_effort, nodes), default=0)]


def _effort(node: Any) -> int:
    """The place in ARITHMETIC of what an operator does."""
    namespace, _, rest = str(node.target).partition(".")
    name = rest.partition(".")[0]
    if namespace == "prims" and name.startswith("inductor_rand"):
        return ARITHMETIC.index("random")
    if name == "pow" and len(node.args) > 1 and node.args[1] in POWERS:
        return 0
    return 0 if name in LIGHT else 1


def _places(product: Any, chain: Chain) -> dict[Any, int]:
    """For the product and each member, the place in ORDERS of its order in memory: how it differs from the product's.
    An operator that keeps the strides of what it reads keeps the order."""
    places = {product: 0}
    for node in chain.members:
        steps = [0]
        for one in node.all_input_nodes:
            if (source := chains.base(one)) in places:
                steps += [places[source], _moved(one, node)]
        places[node] = max(steps)
    return places


def _moved(seen: Any, node: Any) -> int:
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
        steps = [
            (extract.hint(step), extract.hint(size)) for step, size in zip(found.stride(), found.shape, strict=True)
        ]
    except extract.Unsupported:
        return []
    return sorted((dim for dim, (_, size) in enumerate(steps) if size > 1), key=lambda dim: -steps[dim][0])


def _reduced(product: Any) -> bool:
    """Whether the product, or elementwise operators after it, end in a reduction of rows."""
    waiting, seen = [product], {product}
    while waiting and len(seen) <= chains.FARTHEST:
        for user in extract.users(waiting.pop()):
            if _reduces_rows(user):
                return True
            if user not in seen and extract.is_pointwise(user):
                seen.add(user)
                waiting.append(user)
    return False


def _reduces_rows(node: Any) -> bool:
    """Whether `node` reduces the last dimension of its operand, or all dimensions."""
    if node.op != "call_function" or not chains.reduces(node):
        return False
    # `dim` is not always the second argument: for a norm, the second is the order.
    names = [argument.name for argument in node.target._schema.arguments]
    place = names.index("dim") if "dim" in names else len(node.args)
    dims = node.kwargs.get("dim", node.args[place] if place < len(node.args) else None)
    last = value(node.args[0]).dim() - 1
    dims = [dims] if isinstance(dims, int) else dims
    return not dims or any(dim in (-1, last) for dim in dims)
