"""The fusion context of a product: whether the elementwise work that follows it becomes the epilogue of its kernel."""

from __future__ import annotations

from typing import Any

import torch

from gemmdb.inductor.adapter import guessing
from gemmdb.inductor.match import extract

FARTHEST = 64
"""How many elementwise operators are looked through for a reduction; a chain of that length is a kernel by itself."""
SOFTMAX = "prims.prepare_softmax_online.default"
"""What Inductor makes of a softmax's maximum and sum on a GPU. It has no tag."""


def fusion(node: Any) -> str:
    """`pointwise` when every user is elementwise, so that it becomes the kernel's epilogue; else `none`.

    What leads to a reduction of rows, as a residual sum does to the norm behind it, becomes part of the reduction's
    kernel: Inductor joins these two before it thinks of the product's template, and beside ATen as well. Then a kernel
    with an epilogue saves nothing, and the product alone is what is to be compared. Nor does Inductor fuse anything
    into an output whose size comes out of data: it sees no bytes that would be saved.
    """
    if any(guessing.from_data(size) for size in extract.value(node).shape):
        return "none"
    found = extract.users(node)
    if not found or not all(extract.is_pointwise(user) for user in found):
        return "none"
    return "none" if _reduced(found) else "pointwise"


def _reduced(found: list[Any]) -> bool:
    """Whether elementwise operators, or what follows them, end in a reduction of rows."""
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
    """Whether `node` reduces the last dimension of its operand, or all."""
    if node.op != "call_function":
        return False
    if str(node.target) != SOFTMAX and torch.Tag.reduction not in getattr(node.target, "tags", ()):
        return False
    # Not all have it second: of a norm that is the order.
    names = [argument.name for argument in node.target._schema.arguments]
    place = names.index("dim") if "dim" in names else len(node.args)
    dims = node.kwargs.get("dim", node.args[place] if place < len(node.args) else None)
    last = extract.value(node.args[0]).dim() - 1
    dims = [dims] if isinstance(dims, int) else dims
    return not dims or any(dim in (-1, last) for dim in dims)
