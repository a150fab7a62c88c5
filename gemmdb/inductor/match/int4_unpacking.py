"""The numbers of a packed int4 weight in a joint graph: what a node has of the bytes that a program unpacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from gemmdb.inductor.match import extract
from gemmdb.inductor.match.fx import known, value
from gemmdb.key.int4 import INTEGERS

aten = torch.ops.aten
_CAST = torch.ops.prims.convert_element_type.default
_VIEWS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
_SHIFTS = (aten.__rshift__.Scalar, aten.bitwise_right_shift.Tensor_Scalar)
HALF_DTYPES = (torch.float16, torch.bfloat16)
_NUMBERS = (
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
)  # fmt: skip
"""Dtypes that hold all numbers exactly."""
_BITS, _MASK = 4, 15
LOW, HIGH = "low", "high"


@dataclass(frozen=True)
class Half:
    """One number of each byte of `packed` [N, K / 2], `which` of the two, counted from `start`."""

    packed: Any
    which: str
    start: int = 0


@dataclass(frozen=True)
class Whole:
    """All numbers of `packed` as [N, K] or [N, K / size, size], counted from `start` or the zero points `zeros`, times
    `scale`. Each of the last two is [N, K / size]."""

    packed: Any
    packing: str
    start: int = 0
    zeros: Any = None
    scale: Any = None
    size: int = 0


def read(node: Any) -> Half | Whole | None:
    """What a node is of a packed weight; None if it is nothing of the kind."""
    if node.op != "call_function":
        return None
    reader = _READERS.get(node.target)
    return None if reader is None else reader(node)


def _view(node: Any) -> Half | Whole | None:
    """A view that keeps the order of the numbers: [N, K / 2, 1] of a half; [N, K] or [N, K / size, size] of all."""
    found = read(node.args[0])
    if found is None:
        return None
    rows, columns = value(found.packed).shape
    shape = list(value(node).shape)
    if isinstance(found, Half):
        return found if _is(shape, [rows, columns]) or _is(shape, [rows, columns, 1]) else None
    if _is(shape, [rows, 2 * columns]):
        return found
    grouped = len(shape) == 3 and isinstance(shape[2], int) and _is(shape[:1], [rows])
    if not grouped or (found.size and shape[2] != found.size):
        return None
    return replace(found, size=shape[2])


def _cast(node: Any) -> Half | Whole | None:
    """A cast that keeps the numbers: integers from 0 to 15, or with a sign if they are counted from a zero point."""
    found = read(node.args[0])
    scaled = isinstance(found, Whole) and found.scale is not None
    if found is None or scaled or value(node).dtype not in _NUMBERS:
        return None
    return None if value(node).dtype is torch.uint8 and _signed(found) else found


def _signed(found: Half | Whole) -> bool:
    return bool(found.start) or (isinstance(found, Whole) and (found.zeros is not None or found.scale is not None))


def _half(which: str) -> Callable[[Any], Half | Whole | None]:
    number = _MASK if which == LOW else _BITS

    def half(node: Any) -> Half | Whole | None:
        source, by = node.args[:2]
        if by != number:
            return None
        if which == LOW and isinstance(found := read(source), Half):
            return found if not found.start else None  # The mask of what has no other bits.
        val = value(source)
        return Half(source, which) if val.dtype is torch.uint8 and val.dim() == 2 else None

    return half


def _both(node: Any) -> Whole | None:
    """The two halves side by side: `torch.stack` is a `cat` of [N, K / 2, 1]."""
    parts, dim = node.args[0], (node.args[1] if len(node.args) > 1 else 0)
    shape = value(node).shape
    halves = [read(part) for part in parts]
    if len(halves) != 2 or len(shape) != 3 or dim not in (2, -1) or not known(shape[2] == 2):
        return None
    first, second = halves
    if not isinstance(first, Half) or not isinstance(second, Half) or first.packed is not second.packed:
        return None
    if first.start != second.start or first.which == second.which:
        return None
    return Whole(first.packed, "low-first" if first.which == LOW else "high-first", first.start)


def _less(node: Any) -> Half | Whole | None:
    """Numbers less a zero point: one for all, or one for each group."""
    source, by = node.args[:2]
    found = read(source)
    if found is None or node.kwargs or _signed(found) or value(node).dtype is torch.uint8:
        return None  # Numbers without a sign would wrap around.
    if isinstance(by, int | float):
        return replace(found, start=int(by)) if by == int(by) else None
    if isinstance(found, Half) or not isinstance(by, torch.fx.Node):
        return None
    return _with(node, found, by, "zeros")


def _times(node: Any) -> Whole | None:
    """Numbers times the scale of their group."""
    for source, by in (node.args, node.args[::-1]):
        found = read(source) if isinstance(source, torch.fx.Node) else None
        if isinstance(found, Whole) and found.scale is None and isinstance(by, torch.fx.Node):
            return _with(node, found, by, "scale") if value(node).dtype in HALF_DTYPES else None
    return None


def _with(node: Any, found: Whole, by: Any, name: str) -> Whole | None:
    """`found` with a number for each group, from what is broadcast to [N, K / size, size] or repeated to [N, K]."""
    promoted = value(node).dtype.is_floating_point and extract.DTYPES.get(value(by).dtype) in INTEGERS
    if value(by).dtype != value(node).dtype and not promoted:
        return None
    rows, columns = value(found.packed).shape
    numbers = _of_groups(by, rows, 2 * columns)
    if numbers is None:
        return None
    source, size = numbers
    if not _is(list(value(node).shape), [rows, 2 * columns]) and size != value(node).shape[-1]:
        return None
    return replace(found, **{name: source}, size=size) if found.size in (0, size) else None


def _of_groups(node: Any, rows: Any, columns: Any) -> tuple[Any, int] | None:
    """(numbers [N, K / size] or [N, K / size, 1], size) that a node repeats for each group. It is [N, K / size, 1], or
    made of that by `repeat_interleave`, which is a view [N, K] of a copy of what it expands. Without a cast of
    integers to floats."""
    node = _uncast(node)
    if _is(list(value(node).shape), [rows, columns]):
        for target in (_VIEWS, (aten.clone.default,), (aten.expand.default,)):
            if node.target not in target:
                return None
            node = node.args[0]
        node = _uncast(node)
    shape = list(value(node).shape)
    if len(shape) != 3 or not known(shape[2] == 1) or not known(shape[0] == rows):
        return None
    if node.target is aten.unsqueeze.default and node.args[1] in (2, -1):
        node = _uncast(node.args[0])
    if not all(isinstance(one, int) for one in (shape[1], columns)) or not shape[1] or columns % shape[1]:
        return None
    return node, columns // shape[1]


def _uncast(node: Any) -> Any:
    """The integers of which a node makes floats; the node itself if it does not."""
    if node.target is _CAST and value(node).dtype.is_floating_point:
        return node.args[0] if extract.DTYPES.get(value(node.args[0]).dtype) in INTEGERS else node
    return node


def _is(shape: list[Any], wanted: list[Any]) -> bool:
    return len(shape) == len(wanted) and all(known(a == b) for a, b in zip(shape, wanted, strict=True))


_READERS: dict[Any, Callable[[Any], Half | Whole | None]] = {
    **dict.fromkeys((*_VIEWS, aten.unsqueeze.default), _view),
    **dict.fromkeys(_SHIFTS, _half(HIGH)),
    aten.bitwise_and.Scalar: _half(LOW),
    _CAST: _cast,
    aten.cat.default: _both,
    aten.sub.Tensor: _less,
    aten.mul.Tensor: _times,
}
