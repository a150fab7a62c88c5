"""Follow the weight that a program unpacks through nodes that move its elements and change none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from gemmdb.inductor.match import fx
from gemmdb.inductor.match.fx import value
from gemmdb.inductor.match.positions import Unknown
from gemmdb.inductor.match.unpacked import Seen, moved, side_by_side

aten, prims = torch.ops.aten, torch.ops.prims
Reads = Callable[[Any], Seen]
"""Return what a node computes."""


def shape_of(node: Any) -> tuple[int, ...]:
    """Return the sizes of a node's tensor. Raises Unknown for symbolic ones, and for a tensor without elements."""
    shape = tuple(value(node).shape)
    if not all(isinstance(size, int) and size > 0 for size in shape):
        raise Unknown
    return shape


def _flat(node: Any, inner: Reads) -> Seen:
    """A view that keeps the order of the elements, or a copy."""
    shape = shape_of(node)
    return moved(inner(node.args[0]), lambda places: places.reshaped(shape))


def _expand(node: Any, inner: Reads) -> Seen:
    shape = shape_of(node)
    return moved(inner(node.args[0]), lambda places: places.expanded(shape))


def _permute(node: Any, inner: Reads) -> Seen:
    rank = len(shape_of(node))
    if node.target is aten.permute.default:
        order = [one % rank for one in node.args[1]]
    else:
        order = list(range(rank))
        one, other = node.args[1:3] if node.target is aten.transpose.int else (0, rank - 1)
        order[one], order[other] = order[other], order[one]
    return moved(inner(node.args[0]), lambda places: places.permuted(order))


def _slice(node: Any, inner: Reads) -> Seen | None:
    """A slice of all there is."""
    return inner(node.args[0]) if shape_of(node) == shape_of(node.args[0]) else None


def _scattered(node: Any, inner: Reads) -> Seen | None:
    """Numbers of the same memory that are written to every so many places of a tensor in turn, until none is left of
    what it had: `whole[:, place::8] = part`."""
    parts, last, (axis, step) = dict[int, Any](), node, (node.args[2], node.args[5])
    while last.target is aten.slice_scatter.default and len(parts) < step:
        before, part, dim, start, end, by = last.args
        if (dim, by) != (axis, step) or type(end) is not int or not 0 <= start < step or end < shape_of(node)[dim]:
            return None
        parts.setdefault(start, part)  # What is written last stays.
        last = before
    if sorted(parts) != list(range(step)):
        return None
    return side_by_side([inner(parts[place]) for place in range(step)], axis, nested=True)


def _copied(node: Any, inner: Reads) -> Seen | None:
    """A tensor that is written over another one."""
    over, source = node.args[:2]
    same = shape_of(over) == shape_of(source) and value(over).dtype == value(source).dtype
    return inner(source) if same else None


def _joined(node: Any, inner: Reads) -> Seen | None:
    """Numbers of the same memory side by side: `torch.stack` is a `cat`, too."""
    parts, dim = node.args[0], (node.args[1] if len(node.args) > 1 else 0) % len(shape_of(node))
    return side_by_side([inner(part) for part in parts], dim)


VIEWS: Mapping[Any, Callable[[Any, Reads], Seen | None]] = {
    **dict.fromkeys((*fx.FLAT_VIEWS, aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim), _flat),
    **dict.fromkeys((aten.clone.default, aten.alias.default, aten.lift_fresh_copy.default), _flat),
    prims.device_put.default: _flat,
    aten.expand.default: _expand,
    **dict.fromkeys((aten.permute.default, aten.t.default, aten.transpose.int), _permute),
    aten.slice.Tensor: _slice,
    aten.cat.default: _joined,
    aten.slice_scatter.default: _scattered,
    aten.copy.default: _copied,
}
"""By the target of a node, what its elements are."""
