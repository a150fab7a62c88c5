"""Find GEMMs in a joint graph whose program unpacks an int4 weight: two numbers per byte, minus a zero point, times the
scale of their group.

The joint stage must find them, because freezing then turns the unpacking into a 16-bit weight. `linears` reads the
rewritten GEMMs in the post-grad graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from gemmdb.inductor.match import epilogues, extract, fx, mixed, ops
from gemmdb.inductor.match.fx import Unsupported, known, same_sizes, value
from gemmdb.key.int4 import INTEGERS, SIZES, ZERO_NUMBER, Int4Format

aten = torch.ops.aten
_CAST = torch.ops.prims.convert_element_type.default
_SHIFTS = (aten.__rshift__.Scalar, aten.bitwise_right_shift.Tensor_Scalar)
_HALF_DTYPES = (torch.float16, torch.bfloat16)
_EXACT_DTYPES = (
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
)  # fmt: skip
"""Dtypes that hold all numbers exactly."""
_BITS, _MASK = 4, 15


@dataclass
class Int4:
    """One GEMM: its node, the activation, the parts of the weight, and the bias: the addmm's, or added by `addition`
    after the GEMM."""

    node: Any
    a: Any
    weight: Any
    scale: Any
    zeros: Any
    groups: Int4Format
    bias: Any = None
    addition: Any = None

    def leave_mark(self, constant: bool) -> None:
        """Store the metadata that the post-grad stage needs to build the same Problem."""
        m, n = extract.matrix(value(self.a)).sizes[0], extract.hint(value(self.node).shape[-1])
        bias = None if self.bias is None else extract.bias(value(self.bias), m, n).text
        mixed.attach({
            "groups": (self.groups.size, self.groups.zeros, self.groups.packing), "constant": constant, "bias": bias,
            "sizes": (n, extract.hint(value(self.a).shape[-1])),
            "fusion": "none" if bias else epilogues.fusion(self.node),
        }, self.node, self.addition)  # fmt: skip

    def rewrite(self, graph: Any) -> None:
        """Replace the GEMM by `gemmdb::int4_mm`. A bias remains a pointwise addition after it."""
        node = self.node

        def flat(numbers: Any) -> Any:
            """Return the numbers of all groups as [N, K / size]; None without any."""
            flat_already = numbers is None or value(numbers).dim() == 2
            return numbers if flat_already else fx.call(graph, aten.squeeze.dim, (numbers, 2))

        with graph.inserting_before(node):
            args = (self.a, self.weight, flat(self.scale), flat(self.zeros), self.groups.size, self.groups.packing)
            result = fx.call(graph, ops.overload("int4_mm"), args, node.meta)
            if node.target is aten.addmm.default:
                result = fx.call(graph, aten.add.Tensor, (result, self.bias), node.meta)
        node.replace_all_uses_with(result)
        graph.erase_node(node)


def find(node: Any) -> Int4 | None:
    """Return the int4-weight GEMM whose multiplication is `node`, None for anything else."""
    operands = mixed.operands(node)
    if operands is None or node.target is aten.bmm.default:
        return None
    a, b, bias = operands
    try:
        dtype = value(a).dtype
        transposed = b.target is aten.t.default or (b.target is aten.permute.default and list(b.args[1]) == [1, 0])
        if dtype not in _HALF_DTYPES or value(b).dtype != dtype or not transposed or value(b).dim() != 2:
            return None
        found = read(b.args[0])
        if not isinstance(found, Whole) or found.scale is None or not _is_stored(found, value(a)):
            return None
        addition, bias = (None, bias) if bias is not None else mixed.added(node)
        zeros = "none" if found.zeros is None else extract.dtype_name(value(found.zeros).dtype)
        groups = Int4Format(found.size, zeros, found.packing)
        return Int4(node, a, found.packed, found.scale, found.zeros, groups, bias, addition)
    except Unsupported:
        return None


@dataclass(frozen=True)
class Half:
    """One number per byte of `packed` [N, K / 2], the `low` or the high one, minus `start`."""

    packed: Any
    low: bool
    start: int = 0


@dataclass(frozen=True)
class Whole:
    """All numbers of `packed` as [N, K] or [N, K / size, size], minus `start` or the zero points `zeros`, times
    `scale`. `zeros` and `scale` are [N, K / size] each."""

    packed: Any
    packing: str
    start: int = 0
    zeros: Any = None
    scale: Any = None
    size: int = 0


def _is_stored(found: Whole, a: Any) -> bool:
    """Whether the weight's parts have the key's memory layout, with scales of the activation's dtype."""
    if found.size not in SIZES or value(found.scale).dtype != a.dtype:
        return False
    if found.start != (ZERO_NUMBER if found.zeros is None else 0):
        return False
    parts = [value(found.packed), value(found.scale)]
    if found.zeros is not None:
        zeros = value(found.zeros)
        if zeros.dtype != a.dtype and extract.DTYPES.get(zeros.dtype) not in INTEGERS:
            return False
        parts.append(zeros)
    return all(one.device == a.device and one.is_contiguous() for one in parts)


def read(node: Any) -> Half | Whole | None:
    """Match a node as part of unpacking a weight; None for anything else."""
    reader = _READERS.get(node.target) if node.op == "call_function" else None
    return None if reader is None else reader(node)


def _view(node: Any) -> Half | Whole | None:
    """Match a view that keeps the order of the numbers: [N, K / 2, 1] of a half; [N, K] or [N, K / size, size] of
    all."""
    found = read(node.args[0])
    if found is None:
        return None
    rows, columns = value(found.packed).shape
    shape = value(node).shape
    if isinstance(found, Half):
        return found if same_sizes(shape, [rows, columns]) or same_sizes(shape, [rows, columns, 1]) else None
    if same_sizes(shape, [rows, 2 * columns]):
        return found
    grouped = len(shape) == 3 and isinstance(shape[2], int) and known(shape[0] == rows)
    return replace(found, size=shape[2]) if grouped and found.size in (0, shape[2]) else None


def _cast(node: Any) -> Half | Whole | None:
    """Match a cast that keeps the numbers: integers from 0 to 15, or signed if a zero point is subtracted."""
    found, dtype = read(node.args[0]), value(node).dtype
    if found is None or dtype not in _EXACT_DTYPES or (isinstance(found, Whole) and found.scale is not None):
        return None
    return None if dtype is torch.uint8 and _signed(found) else found


def _signed(found: Half | Whole) -> bool:
    return bool(found.start) or (isinstance(found, Whole) and (found.zeros is not None or found.scale is not None))


def _half(node: Any) -> Half | Whole | None:
    """Match the low numbers by a mask, or the high ones by a shift."""
    low = node.target is aten.bitwise_and.Scalar
    source, by = node.args[:2]
    if by != (_MASK if low else _BITS):
        return None
    if low and isinstance(found := read(source), Half):
        return found if not found.start else None  # The mask of a value without other bits.
    val = value(source)
    return Half(source, low) if val.dtype is torch.uint8 and val.dim() == 2 else None


def _both(node: Any) -> Whole | None:
    """Match the two halves side by side: `torch.stack` is a `cat` of [N, K / 2, 1]."""
    parts, dim = node.args[0], (node.args[1] if len(node.args) > 1 else 0)
    shape = value(node).shape
    halves = [read(part) for part in parts]
    if len(halves) != 2 or len(shape) != 3 or dim not in (2, -1) or not known(shape[2] == 2):
        return None
    first, second = halves
    if not isinstance(first, Half) or not isinstance(second, Half) or first.packed is not second.packed:
        return None
    if first.start != second.start or first.low == second.low:
        return None
    return Whole(first.packed, "low-first" if first.low else "high-first", first.start)


def _less(node: Any) -> Half | Whole | None:
    """Match numbers minus a zero point: one for all, or one per group."""
    source, by = node.args[:2]
    found = read(source)
    if found is None or node.kwargs or _signed(found) or value(node).dtype is torch.uint8:
        return None  # Unsigned numbers would wrap around.
    if isinstance(by, int | float):
        return replace(found, start=int(by)) if by == int(by) else None
    if isinstance(found, Half) or not isinstance(by, torch.fx.Node):
        return None
    return _with(node, found, by, "zeros")


def _times(node: Any) -> Whole | None:
    """Match numbers times the scale of their group."""
    for source, by in (node.args, node.args[::-1]):
        found = read(source) if isinstance(source, torch.fx.Node) else None
        if isinstance(found, Whole) and found.scale is None and isinstance(by, torch.fx.Node):
            return _with(node, found, by, "scale") if value(node).dtype in _HALF_DTYPES else None
    return None


def _with(node: Any, found: Whole, by: Any, name: str) -> Whole | None:
    """Return `found` with one number per group, from a tensor broadcast to [N, K / size, size] or repeated to [N,
    K]."""
    promoted = value(node).dtype.is_floating_point and extract.DTYPES.get(value(by).dtype) in INTEGERS
    if value(by).dtype != value(node).dtype and not promoted:
        return None
    rows, columns = value(found.packed).shape
    numbers = _of_groups(by, rows, 2 * columns)
    if numbers is None:
        return None
    source, size = numbers
    if not same_sizes(value(node).shape, [rows, 2 * columns]) and size != value(node).shape[-1]:
        return None
    return replace(found, **{name: source}, size=size) if found.size in (0, size) else None


def _of_groups(node: Any, rows: Any, columns: Any) -> tuple[Any, int] | None:
    """Return (numbers [N, K / size] or [N, K / size, 1], size) that a node repeats for each group. The input is [N, K /
    size, 1], or comes from `repeat_interleave`, a view [N, K] of a copy of the expanded numbers. Skips a cast of
    integers to floats."""
    node = _uncast(node)
    if same_sizes(value(node).shape, [rows, columns]):
        for target in (fx.FLAT_VIEWS, (aten.clone.default,), (aten.expand.default,)):
            if node.target not in target:
                return None
            node = node.args[0]
        node = _uncast(node)
    shape = value(node).shape
    if len(shape) != 3 or not known(shape[2] == 1) or not known(shape[0] == rows):
        return None
    if node.target is aten.unsqueeze.default and node.args[1] in (2, -1):
        node = _uncast(node.args[0])
    if not all(isinstance(one, int) for one in (shape[1], columns)) or not shape[1] or columns % shape[1]:
        return None
    return node, columns // shape[1]


def _uncast(node: Any) -> Any:
    """Return the integers that a node casts to floats; the node itself if it is not such a cast."""
    if node.target is _CAST and value(node).dtype.is_floating_point:
        return node.args[0] if extract.DTYPES.get(value(node.args[0]).dtype) in INTEGERS else node
    return node


_READERS: dict[Any, Callable[[Any], Half | Whole | None]] = {
    **dict.fromkeys((*fx.FLAT_VIEWS, aten.unsqueeze.default), _view),
    **dict.fromkeys((*_SHIFTS, aten.bitwise_and.Scalar), _half),
    _CAST: _cast,
    aten.cat.default: _both,
    aten.sub.Tensor: _less,
    aten.mul.Tensor: _times,
}
