"""Products with an int4 weight that a program unpacks itself, in the joint graph: two numbers of each byte, counted from
a zero point, times the scale of their group, by a linear layer.

Later, freezing has made a 16-bit weight of all that. A product that is not rewritten gets the mark of `mixed`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from gemmdb.inductor import ops
from gemmdb.inductor.int4 import FROM
from gemmdb.inductor.match import epilogues, extract, reading, rewriting
from gemmdb.inductor.match.extract import Unsupported, known, value
from gemmdb.key.int4 import INTEGERS, SIZES, Groups

aten = torch.ops.aten
_CAST = torch.ops.prims.convert_element_type.default
_VIEWS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
_SHIFTS = (aten.__rshift__.Scalar, aten.bitwise_right_shift.Tensor_Scalar)
_HALVES = (torch.float16, torch.bfloat16)
_NUMBERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32)
"""Dtypes that hold all numbers exactly."""
_BITS, _MASK = 4, 15
LOW, HIGH = "low", "high"


@dataclass(frozen=True)
class _Half:
    """One number of each byte of `packed` [N, K / 2], `which` of the two, counted from `start`."""

    packed: Any
    which: str
    start: int = 0


@dataclass(frozen=True)
class _Whole:
    """All numbers of `packed` as [N, K] or [N, K / size, size], counted from `start` or the zero points `zeros`, times
    `scale`. Each of the last two is [N, K / size]."""

    packed: Any
    packing: str
    start: int = 0
    zeros: Any = None
    scale: Any = None
    size: int = 0


@dataclass
class Int4:
    """One product: its node, the activation, the parts of the weight, and the bias of an addmm."""

    node: Any
    a: Any
    weight: Any
    scale: Any
    zeros: Any
    groups: Groups
    bias: Any = None

    def leave_mark(self, constant: bool) -> None:
        """Store what the post-grad stage needs to build the same Problem, on the product."""
        m, n = extract.matrix(value(self.a)).sizes[0], value(self.node).shape[-1]
        bias = None if self.bias is None else extract.bias(value(self.bias), m, extract.hint(n)).text
        mark = {
            "groups": (self.groups.size, self.groups.zeros, self.groups.packing), "constant": constant, "bias": bias,
            "sizes": (extract.hint(n), extract.hint(value(self.a).shape[-1])),
            "fusion": "none" if bias else epilogues.fusion(self.node),
        }  # fmt: skip
        # This is the metadata that Inductor copies to the nodes that replace a node.
        self.node.meta["custom"] = {**self.node.meta.get("custom", {}), reading.MARK: mark}

    def rewrite(self, graph: Any) -> None:
        """Replace the product by `gemmdb::int4_mm`. A bias stays a pointwise addition after it."""
        node = self.node
        with graph.inserting_before(node):
            scale, zeros = (_flat(graph, one) for one in (self.scale, self.zeros))
            args = (self.a, self.weight, scale, zeros, self.groups.size, self.groups.packing)
            result = rewriting.call(graph, ops.register_int4(), args, node.meta)
            if self.bias is not None:
                result = rewriting.call(graph, aten.add.Tensor, (result, self.bias), node.meta)
        node.replace_all_uses_with(result)
        graph.erase_node(node)


def _flat(graph: Any, numbers: Any) -> Any:
    """The numbers of all groups as [N, K / size]; None if there are none."""
    if numbers is None or value(numbers).dim() == 2:
        return numbers
    return rewriting.call(graph, aten.squeeze.dim, (numbers, 2))


def find(node: Any) -> Int4 | None:
    """The product with an int4 weight whose multiplication is `node`, None for anything else."""
    if node.target is aten.mm.default:
        (a, b), bias = node.args[:2], None
    elif node.target is aten.addmm.default and set(node.kwargs.values()) <= {1}:
        bias, a, b = node.args[:3]
    else:
        return None
    try:
        if value(a).dtype not in _HALVES or value(b).dtype != value(a).dtype:
            return None
        stored = _transposed(b)
        found = None if stored is None else _read(stored)
        if not isinstance(found, _Whole) or found.scale is None or not _dense(found, value(a)):
            return None
        return Int4(node, a, found.packed, found.scale, found.zeros, _groups(found), bias)
    except Unsupported:
        return None


def _groups(found: _Whole) -> Groups:
    zeros = "none" if found.zeros is None else extract.dtype_name(value(found.zeros).dtype)
    return Groups(found.size, zeros, found.packing)


def _dense(found: _Whole, a: Any) -> bool:
    """Whether the parts of a weight lie as the key says, with scales of the activation's dtype."""
    if found.size not in SIZES or value(found.scale).dtype != a.dtype or (found.zeros is None and found.start != FROM):
        return False
    if found.zeros is not None and (found.start or not _counts(value(found.zeros).dtype, a.dtype)):
        return False
    parts = [value(one) for one in (found.packed, found.scale, found.zeros) if one is not None]
    return all(one.device == a.device and one.is_contiguous() for one in parts)


def _counts(dtype: Any, activation: Any) -> bool:
    return dtype == activation or extract.DTYPES.get(dtype) in INTEGERS


def _transposed(b: Any) -> Any:
    """The stored weight [N, K] of a product's B [K, N]; None if B is not transposed."""
    turned = b.target is aten.t.default or (b.target is aten.permute.default and list(b.args[1]) == [1, 0])
    return b.args[0] if turned and value(b).dim() == 2 else None


def _read(node: Any) -> _Half | _Whole | None:
    """What a node is of a packed weight; None if it is nothing of the kind."""
    if node.op != "call_function":
        return None
    reader = _READERS.get(node.target)
    return None if reader is None else reader(node)


def _view(node: Any) -> _Half | _Whole | None:
    """A view that keeps the order of the numbers: [N, K / 2, 1] of a half; [N, K] or [N, K / size, size] of all."""
    found = _read(node.args[0])
    if found is None:
        return None
    rows, columns = value(found.packed).shape
    shape = list(value(node).shape)
    if isinstance(found, _Half):
        return found if _is(shape, [rows, columns]) or _is(shape, [rows, columns, 1]) else None
    if _is(shape, [rows, 2 * columns]):
        return found
    grouped = len(shape) == 3 and isinstance(shape[2], int) and _is(shape[:1], [rows])
    if not grouped or (found.size and shape[2] != found.size):
        return None
    return replace(found, size=shape[2])


def _cast(node: Any) -> _Half | _Whole | None:
    """A cast that keeps the numbers: integers from 0 to 15, or with a sign if they are counted from a zero point."""
    found = _read(node.args[0])
    scaled = isinstance(found, _Whole) and found.scale is not None
    if found is None or scaled or value(node).dtype not in _NUMBERS:
        return None
    return None if value(node).dtype is torch.uint8 and _signed(found) else found


def _signed(found: _Half | _Whole) -> bool:
    return bool(found.start) or (isinstance(found, _Whole) and (found.zeros is not None or found.scale is not None))


def _half(which: str) -> Callable[[Any], _Half | _Whole | None]:
    number = _MASK if which == LOW else _BITS

    def read(node: Any) -> _Half | _Whole | None:
        source, by = node.args[:2]
        if by != number:
            return None
        if which == LOW and isinstance(found := _read(source), _Half):
            return found if not found.start else None  # The mask of what has no other bits.
        val = value(source)
        return _Half(source, which) if val.dtype is torch.uint8 and val.dim() == 2 else None

    return read


def _both(node: Any) -> _Whole | None:
    """The two halves side by side: `torch.stack` is a `cat` of [N, K / 2, 1]."""
    parts, dim = node.args[0], (node.args[1] if len(node.args) > 1 else 0)
    shape = value(node).shape
    halves = [_read(part) for part in parts]
    if len(halves) != 2 or len(shape) != 3 or dim not in (2, -1) or not known(shape[2] == 2):
        return None
    first, second = halves
    if not isinstance(first, _Half) or not isinstance(second, _Half) or first.packed is not second.packed:
        return None
    if first.start != second.start or first.which == second.which:
        return None
    return _Whole(first.packed, "low-first" if first.which == LOW else "high-first", first.start)


def _less(node: Any) -> _Half | _Whole | None:
    """Numbers less a zero point: one for all, or one for each group."""
    source, by = node.args[:2]
    found = _read(source)
    if found is None or node.kwargs or _signed(found) or value(node).dtype is torch.uint8:
        return None  # Numbers without a sign would wrap around.
    if isinstance(by, int | float):
        return replace(found, start=int(by)) if by == int(by) else None
    if isinstance(found, _Half) or not isinstance(by, torch.fx.Node):
        return None
    return _with(node, found, by, "zeros")


def _times(node: Any) -> _Whole | None:
    """Numbers times the scale of their group."""
    for source, by in (node.args, node.args[::-1]):
        found = _read(source) if isinstance(source, torch.fx.Node) else None
        if isinstance(found, _Whole) and found.scale is None and isinstance(by, torch.fx.Node):
            return _with(node, found, by, "scale") if value(node).dtype in _HALVES else None
    return None


def _with(node: Any, found: _Whole, by: Any, name: str) -> _Whole | None:
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
    """(numbers [N, K / size] or [N, K / size, 1], size) that a node repeats for each group: the node is [N, K / size, 1],
    or made of that by `repeat_interleave`, which is a view [N, K] of a copy of what it expands. Without a cast of
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


_READERS: dict[Any, Callable[[Any], _Half | _Whole | None]] = {
    **dict.fromkeys((*_VIEWS, aten.unsqueeze.default), _view),
    **dict.fromkeys(_SHIFTS, _half(HIGH)),
    aten.bitwise_and.Scalar: _half(LOW),
    _CAST: _cast,
    aten.cat.default: _both,
    aten.sub.Tensor: _less,
    aten.mul.Tensor: _times,
}
