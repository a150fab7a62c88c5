"""Follow a weight that a program unpacks, from a GEMM's operand back to the packed tensors.

Each node of the way is understood exactly, or not at all: which four bits of which memory an element is
(`positions.Places`), what is subtracted from it, and by what it is multiplied. `int4` compares the result with the
packings of the key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from gemmdb.inductor.lower.adapter import state
from gemmdb.inductor.match.constants import Constants
from gemmdb.inductor.match.fx import value
from gemmdb.inductor.match.group_order import GroupOrder
from gemmdb.inductor.match.positions import Places, Unknown
from gemmdb.inductor.match.unpacked import (
    INTEGER_DTYPES,
    Known,
    Number,
    Seen,
    Stored,
    Weight,
    fits,
    fp4_of,
    masked_byte,
    moved,
    numbers_of,
    power_of,
    same_kind,
    scaled,
    sizes_of,
)
from gemmdb.inductor.match.unpacking_views import VIEWS, shape_of
from gemmdb.key.int4 import E2M1

aten, prims = torch.ops.aten, torch.ops.prims
BITS, MASK = 4, 15
_BYTE_MASK = 255
HALF_DTYPES = (torch.float16, torch.bfloat16)
WIDE_DTYPES = (torch.bfloat16, torch.float32)
"""Dtypes with all powers of two that a byte may stand for."""
_EXACT_DTYPES = (*INTEGER_DTYPES, *HALF_DTYPES, torch.float32)
"""Dtypes that hold all numbers exactly."""
_PACKED_DTYPES = (torch.uint8, torch.int8, torch.int32)
MAX_NODES, MAX_DEPTH, MAX_NUMBERS = 256, 64, 2**17
"""Nodes that are looked at for one weight, nodes in a row among them, and numbers that are read of a constant, at
most."""


class Reader:
    """Reads the nodes of one weight. `known`: whether it reads shifts and orders, which are integers that the compile
    knows; `numbers` is the reader of these. `order`: in which a program gathers rows of groups, if it does."""

    def __init__(self, constants: Constants, known: bool = False) -> None:
        self.constants, self.known = constants, known
        self.numbers: Reader = self if known else Reader(constants, known=True)
        self.order: GroupOrder | None = None
        self._seen: dict[Any, Seen] = {}
        self._depth = 0

    def __call__(self, node: Any) -> Seen:
        """Return what a node computes. Raises Unknown, and Unsupported without tensor metadata."""
        if node not in self._seen:
            if max(len(self._seen) - MAX_NODES, self._depth - MAX_DEPTH) > 0 or not isinstance(node, torch.fx.Node):
                raise Unknown
            self._depth += 1
            try:
                self._seen[node] = self._read(node)
            finally:
                self._depth -= 1
        return self._seen[node]

    def _read(self, node: Any) -> Seen:
        reader = _READERS.get(node.target) if node.op == "call_function" else None
        try:
            found = None if reader is None else reader(node, self)
            # A way of writing a node's arguments that its reader does not know would move elements.
            known = found is not None and sizes_of(found) == shape_of(node)
        except (Unknown, LookupError, TypeError, ValueError):
            found, known = None, False
        return found if found is not None and known else self.leaf(node)

    def leaf(self, node: Any) -> Seen:
        """Any tensor in memory: what its node computes is not looked at."""
        val, shape = value(node), shape_of(node)
        if self.known and val.dtype in INTEGER_DTYPES and val.numel() <= MAX_NUMBERS:
            found = self.constants.tensor(node)
            if found is None:
                raise Unknown
            return Known(Places.listed(state.integers(found)).reshaped(shape))
        if not val.is_contiguous():
            raise Unknown
        item = 2 * val.itemsize if val.dtype in _PACKED_DTYPES else 0
        return Stored(node, Places.dense(shape, item or 1), item)

    def gathered_by(self, node: Any) -> GroupOrder | None:
        """Return the order of rows in a constant that has their groups, None for sorted ones and for any other node.
        Raises Unknown if other rows are in another order."""
        found = None if self.known else self.constants.copied(node)
        if found is None or found.dtype not in INTEGER_DTYPES or found.numel() > MAX_NUMBERS:
            return None
        order = GroupOrder.of(state.integers(found))
        if order is not None and self.order not in (None, order):
            raise Unknown
        self.order = order or self.order
        return order


def _other_dtype(node: Any, inner: Reader) -> Seen | None:
    """The same memory as integers of another size."""
    seen, dtype, before = inner(node.args[0]), value(node).dtype, value(node.args[0]).dtype
    if isinstance(seen, Number) and seen.masked and seen.bits == BITS and {dtype, before} == {torch.uint8, torch.int8}:
        return seen if 0 <= seen.plus <= MASK else None
    if not isinstance(seen, Stored) or not seen.item or seen.power or dtype not in _PACKED_DTYPES:
        return None
    item, dims = 2 * dtype.itemsize, seen.places.dims
    if item >= seen.item or not dims:
        return None
    inside = Places.dense([seen.item // item], item).dims[0]
    places = Places(seen.places.first, (*dims[:-1], (*dims[-1], *inside)))
    return Stored(seen.source, places.reshaped(shape_of(node)), item)


def _chosen(node: Any, inner: Reader) -> Seen | None:
    """Elements that known numbers choose along one dimension, or the values of E2M1 that numbers stand for."""
    given = [(dim, one) for dim, one in enumerate(node.args[1]) if one is not None]
    if len(given) != 1:
        return None
    if value(node.args[0]).shape == (len(E2M1),) and value(node).dtype in WIDE_DTYPES:
        seen = inner(given[0][1]) if value(given[0][1]).dtype in (torch.int32, torch.int64) else None
        return fp4_of(seen) if seen is not None and inner.constants.floats(node.args[0]) == list(E2M1) else None
    dim, choice = given[0]
    if (order := inner.gathered_by(choice)) is not None:
        return moved(inner(node.args[0]), lambda places: order.gathered(places, dim))
    by = inner.numbers(choice)
    if not isinstance(by, Known) or len(by.places.dims) != 1:
        return None
    return moved(inner(node.args[0]), lambda places: places.chosen(dim, by.places))


def _powered(node: Any, inner: Reader) -> Seen | None:
    """Two to the power of bytes less 127."""
    base, by = node.args if node.target is aten.pow.Scalar else (2, node.args[0])
    return power_of(inner(by)) if base == 2 and value(node).dtype in WIDE_DTYPES else None


def _ldexp(node: Any, inner: Reader) -> Seen | None:
    """Values of E2M1 times two to the power of bytes less 127."""
    seen, scale = inner(node.args[0]), power_of(inner(node.args[1]))
    if not isinstance(seen, Number) or not seen.fp4 or scale is None or value(node).dtype not in WIDE_DTYPES:
        return None
    return scaled(Weight(seen), scale, shape_of(node))


def _counted(node: Any, inner: Reader) -> Seen:
    """`torch.arange`."""
    start, step, size = node.kwargs["start"], node.kwargs["step"], node.args[0]
    if not all(type(one) is int for one in (start, step, size)):
        raise Unknown
    return Known(Places(start, Places.dense([size], step).dims))


def _cast(node: Any, inner: Reader) -> Seen | None:
    """A cast that keeps the number."""
    seen, dtype = inner(node.args[0]), value(node).dtype
    if isinstance(seen, Known):
        return seen if dtype in (torch.int32, torch.int64) else None
    if dtype not in _EXACT_DTYPES:
        return None
    if (isinstance(seen, Number) and seen.fp4) or (isinstance(seen, Stored) and seen.power):
        return seen if dtype in WIDE_DTYPES else None
    if isinstance(seen, Number):
        kept = seen.masked or dtype in INTEGER_DTYPES  # The low bits of what is not masked yet.
        whole = fits(seen, dtype) if seen.bits > BITS else seen.plus >= 0 or dtype is not torch.uint8
        return seen if kept and whole else None
    if isinstance(seen, Weight) and seen.number.fp4:
        return seen if dtype in WIDE_DTYPES else None
    if isinstance(seen, Weight) and seen.scale is not None and seen.number.bits > BITS:
        return seen if dtype in HALF_DTYPES and value(node.args[0]).dtype is torch.float32 else None
    if isinstance(seen, Weight):
        # Zero points from memory may have a fraction, or be too large for an integer of another size.
        whole = not isinstance(seen.zeros, Stored) and dtype is not torch.uint8 and seen.number.bits == BITS
        return seen if seen.scale is None and (whole or dtype.is_floating_point) else None
    # Bytes, which are followed further: their own dtype is stored.
    return seen if seen.item == 2 and (dtype.is_floating_point or dtype.itemsize > 1) else None


def _shifted(node: Any, inner: Reader) -> Seen | None:
    """Integers shifted to the right, until other four bits are the lowest."""
    source, by = node.args[:2]
    seen, shift = inner(source), Known(Places(by, ())) if type(by) is int else inner.numbers(by)
    if not isinstance(seen, Stored) or not seen.item or seen.power or not isinstance(shift, Known):
        return None
    many = shift.places.divided(BITS)
    if many.first < 0 or many.last >= seen.item or any(step < 0 for dim in many.dims for _, step in dim):
        return None
    top = value(source).dtype is torch.uint8 and many == Places(1, many.dims) and many.last == 1
    return Number(seen.source, seen.places.plus(many), masked=top, room=seen.item - many.last)


def _masked(node: Any, inner: Reader) -> Seen | None:
    source, by = node.args[:2]
    if type(by) is not int or by not in (MASK, _BYTE_MASK):
        return None
    seen = inner(source)
    if by == _BYTE_MASK:
        return masked_byte(seen, value(node).dtype)
    if isinstance(seen, Number) and (seen.bits > BITS or seen.fp4):
        return None
    if isinstance(seen, Stored) and seen.item and not seen.power:
        return Number(seen.source, seen.places, masked=True)
    if not isinstance(seen, Number) or value(node).dtype not in INTEGER_DTYPES:
        return None
    return replace(seen, masked=True, plus=seen.plus % (MASK + 1), wrapped=bool(seen.plus) or seen.wrapped)


def _added(node: Any, inner: Reader) -> Seen | None:
    """Numbers plus or minus one for all, or minus zero points."""
    source, by = node.args[:2]
    seen = numbers_of(inner(source))
    if not isinstance(seen, Number) or seen.fp4 or node.kwargs:
        return None
    dtype, minus = value(node).dtype, node.target is aten.sub.Tensor
    if isinstance(by, int | float):
        if not float(by).is_integer() or seen.wrapped:
            return None
        plus = seen.plus + (-int(by) if minus else int(by))
        if seen.bits > BITS:
            moved_by = replace(seen, plus=plus)
            return moved_by if dtype in _EXACT_DTYPES and fits(moved_by, dtype) else None
        # Where a mask follows, only the low bits count.
        near = -MASK <= plus <= MASK and (plus >= 0 or dtype is not torch.uint8)
        return replace(seen, plus=plus) if near and (seen.masked or dtype in INTEGER_DTYPES) else None
    if not minus or not seen.masked or dtype is torch.uint8 or dtype not in _EXACT_DTYPES:
        return None  # Unsigned numbers would wrap around.
    zeros = inner(by)
    if isinstance(zeros, Number) and zeros.bits > seen.bits:
        zeros = inner.leaf(by)  # Bytes that the program computes.
    if seen.bits > BITS and (dtype is torch.int8 or not same_kind(seen, zeros)):
        return None  # Their difference would wrap around, or is not exact.
    if not isinstance(zeros, Number | Stored) or (isinstance(zeros, Number) and (zeros.fp4 or not zeros.masked)):
        return None
    if isinstance(zeros, Stored) and not (zeros.item == 2 or value(by).dtype == dtype):
        return None
    shape = shape_of(node)
    return moved(Weight(seen, zeros), lambda places: places.expanded(shape))


def _scaled(node: Any, inner: Reader) -> Seen | None:
    """Numbers times the scale of their group."""
    dtype = value(node).dtype
    for source, by in (node.args[:2], node.args[1::-1]):
        if not isinstance(source, torch.fx.Node) or not isinstance(by, torch.fx.Node):
            return None
        seen, scale = numbers_of(inner(source)), inner(by)
        weight = Weight(seen) if isinstance(seen, Number) and seen.masked else seen
        if not isinstance(weight, Weight) or weight.scale is not None or not isinstance(scale, Stored):
            continue
        if weight.number.fp4:
            known = scale.power and dtype in WIDE_DTYPES  # All of their products are exact.
        else:
            # Bytes may have scales of fp32, which multiply in fp32.
            many = (*HALF_DTYPES, torch.float32) if weight.number.bits > BITS else HALF_DTYPES
            known = not scale.item and value(by).dtype == dtype and dtype in many
        if known:
            return scaled(weight, scale, shape_of(node))
    return None


_READERS: dict[Any, Callable[[Any, Reader], Seen | None]] = {
    **VIEWS,
    aten.view.dtype: _other_dtype,
    aten.index.Tensor: _chosen,
    prims.iota.default: _counted,
    prims.convert_element_type.default: _cast,
    **dict.fromkeys((aten.__rshift__.Scalar, aten.bitwise_right_shift.Tensor_Scalar), _shifted),
    aten.bitwise_right_shift.Tensor: _shifted,
    aten.bitwise_and.Scalar: _masked,
    aten.add.Tensor: _added,
    aten.sub.Tensor: _added,
    aten.mul.Tensor: _scaled,
    aten.exp2.default: _powered,
    aten.pow.Scalar: _powered,
    aten.ldexp.Tensor: _ldexp,
}
