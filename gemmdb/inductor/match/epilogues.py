"""The fusion context of a product: whether the elementwise work that follows it becomes the epilogue of its kernel."""

from __future__ import annotations

from typing import Any

import torch

from gemmdb.inductor.adapter import guessing
from gemmdb.inductor.match import extract

FARTHEST = 64
"""How many elementwise operators to look through for a reduction. A chain of that length is a kernel by itself."""
SOFTMAX = "prims.prepare_softmax_online.default"
"""Inductor's operator for the maximum and sum of a softmax on a GPU. It has no tag."""


def fusion(node: Any) -> str:
    """`pointwise` if every user is elementwise and so becomes the kernel's epilogue; else `none`.

    Elementwise work that leads to a reduction of rows, such as a residual sum before a norm, becomes part of the
    reduction's kernel: Inductor fuses these two before it considers the product's template, and does the same beside
    ATen. Then a kernel with an epilogue saves nothing, and only the product itself should be compared. Inductor also
    fuses nothing into an output whose size comes out of data, because it sees no bytes that this would save.
    """
    if any(guessing.from_data(size) for size in extract.value(node).shape):
        return "none"
    found = extract.users(node)
    if not found or not all(extract.is_pointwise(user) for user in found):
        return "none"
    return "none" if _reduced(found) else "pointwise"


def _reduced(found: list[Any]) -> bool:
    """Whether elementwise operators, or the elementwise operators after them, end in a reduction of rows."""
    waiting, seen = list(found), set(found)
    while waiting and len(seen) <= FARTHEST:
        for user in extract.users(waiting.pop()):
            if _reduces_rows(user):
                return True
            if user not in seen and extract.is_pointwise(user):
                seen.add(user)
                waiting.append(user)
    return False


def _reduces_rows(node: Any) -> bool:
    """Whether `node` reduces the last dimension of its operand, or all dimensions."""
    if node.op != "call_function":
        return False
    if str(node.target) != SOFTMAX and torch.Tag.reduction not in getattr(node.target, "tags", ()):
        return False
    # `dim` is not always the second argument: for a norm, the second is the order.
    names = [argument.name for argument in node.target._schema.arguments]
    place = names.index("dim") if "dim" in names else len(node.args)
    dims = node.kwargs.get("dim", node.args[place] if place < len(node.args) else None)
    last = extract.value(node.args[0]).dim() - 1
    dims = [dims] if isinstance(dims, int) else dims
    return not dims or any(dim in (-1, last) for dim in dims)
