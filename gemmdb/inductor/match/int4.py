"""Find GEMMs in a joint graph whose program unpacks a weight of four or eight bits: numbers minus a zero point, times
the scale of their group.

The joint stage must find them, because freezing then turns the unpacking into a 16-bit weight. `linears` reads the
rewritten GEMMs in the post-grad graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from gemmdb.inductor.lower.adapter import state
from gemmdb.inductor.match import epilogues, extract, fx, mixed, ops, unpacking
from gemmdb.inductor.match.constants import Constants
from gemmdb.inductor.match.fx import Unsupported, value
from gemmdb.inductor.match.positions import Places, Unknown, merged
from gemmdb.inductor.match.spelling import SPELLING, Spelling, spelled
from gemmdb.inductor.match.unpacked import Number, Stored, Weight
from gemmdb.key.int4 import FP4, IN_WORDS, INT4, MX_SIZE, PACKED, SIZES, ZERO_BYTES, ZERO_NUMBER, Int4Format, Packing

aten = torch.ops.aten
WORD_DTYPES = {"n": (torch.uint8, torch.int32), "k": (torch.int32,)}
"""Dtypes of packed weights by the outer size in memory. Four bytes may be one word."""
_VIEWS = (*fx.FLAT_VIEWS, aten.slice.Tensor, aten.select.int, aten.alias.default, aten.view.dtype)
BYTE_DTYPES = (torch.int8, torch.uint8, torch.int32)
"""Dtypes of weights with a number in each byte."""


@dataclass(frozen=True)
class Order:
    """Rows of a weight that have to be sorted by their groups, and the tensor of the packed weight."""

    rows: list[int]
    packed: torch.Tensor


@dataclass
class Int4:
    """One GEMM: its node, the activation, the parts of the weight, and the bias: the addmm's, or added by `addition`
    after the GEMM. `order`: None for rows that are sorted."""

    node: Any
    a: Any
    weight: Any
    scale: Any
    zeros: Any
    groups: Int4Format
    bias: Any = None
    addition: Any = None
    order: Order | None = None

    def leave_mark(self, constant: bool) -> None:
        """Store the metadata that the post-grad stage needs to build the same Problem."""
        m, n = extract.matrix(value(self.a)).sizes[0], extract.hint(value(self.node).shape[-1])
        bias = None if self.bias is None else extract.bias(value(self.bias), m, n).text
        mixed.attach({
            "groups": (self.groups.size, self.groups.zeros, self.groups.packing), "constant": constant, "bias": bias,
            "dtype": ops.weight_dtype(value(self.weight).dtype, self.groups.packing),
            "sizes": (n, extract.hint(value(self.a).shape[-1])),
            "fusion": "none" if bias else epilogues.fusion(self.node),
        }, self.node, self.addition)  # fmt: skip

    def rewrite(self, graph: Any) -> None:
        """Replace the GEMM by `gemmdb::int4_mm`, which keeps the program's own nodes for ATen. A bias remains a
        pointwise addition after it."""
        node, packing, size = self.node, PACKED[self.groups.packing], self.groups.size
        weight, order = (self.weight, None) if self.order is None else self._sorted(graph, self.order)
        n, k = value(node).shape[-1], value(self.a).shape[-1]

        def shaped(part: Any, sizes: tuple[int, int]) -> Any:
            """Return a tensor of the weight with these sizes."""
            as_it_is = part is None or tuple(value(part).shape) == sizes
            return part if as_it_is else fx.call(graph, aten.reshape.default, (part, list(sizes)))

        with graph.inserting_before(node):
            groups = packing.groups(n, k, size)
            in_words = self.zeros is not None and value(self.zeros).dtype is torch.int32
            zeros = packing.groups(n // packing.in_word if in_words else n, k, size)
            args = (
                self.a, shaped(weight, packing.sizes(n, k, value(weight).itemsize)), shaped(self.scale, groups),
                shaped(self.zeros, zeros), size, self.groups.packing, *([] if order is None else [order]),
            )  # fmt: skip
            result = fx.call(graph, ops.overload("int4_mm"), args, node.meta)
            if order is None:
                result.meta[SPELLING] = self._spelled(args[1:4])
            if node.target is aten.addmm.default:
                result = fx.call(graph, aten.add.Tensor, (result, self.bias), node.meta)
        node.replace_all_uses_with(result)
        graph.erase_node(node)

    def _spelled(self, views: Sequence[Any]) -> Spelling | None:
        """Return the GEMM as the program spells it, of the packed weight, scale and zero points in `views`."""
        operands = mixed.operands(self.node)
        assert operands is not None
        tensors = zip((self.weight, self.scale, self.zeros), views, strict=True)
        return spelled(self.node, *operands[:2], [pair for pair in tensors if pair[0] is not None])

    def _sorted(self, graph: Any, order: Order) -> tuple[Any, Any]:
        """Return constants of the graph: the packed weight with its rows sorted, and the order of the rows."""
        with state.real_tensors():
            rows = torch.tensor(order.rows, device=order.packed.device)
            n, k = extract.hint(value(self.node).shape[-1]), len(order.rows)
            sizes = PACKED[self.groups.packing].sizes(n, k, order.packed.itemsize)
            packed = ops.with_rows(order.packed.view(sizes), rows, self.groups)
        packed, rows = map(state.mark_frozen, (packed, rows))
        return fx.constant(graph, packed, self.node), fx.constant(graph, rows, self.node)


def find(node: Any, constants: Mapping[Any, Any] = MappingProxyType({})) -> Int4 | None:
    """Return the int4-weight GEMM whose multiplication is `node`, None for anything else. `constants`: the tensors of
    placeholders that freezing makes constants."""
    operands = mixed.operands(node)
    if operands is None or node.target is aten.bmm.default:
        return None
    a, b, bias = operands
    try:
        rows, weight = value(a), value(b)
        if rows.dtype not in unpacking.HALF_DTYPES or weight.dtype != rows.dtype or b.op != "call_function":
            return None
        known = Constants(constants)
        reader = unpacking.Reader(known)
        found = reader(b)
        if not isinstance(found, Weight) or found.scale is None:
            return None
        order = None
        if reader.order is not None:
            found, packed = reader.order.sorted(found), known.tensor(found.number.source)
            if packed is None or not packed.is_contiguous() or found.number.bits != 4 or found.number.fp4:
                return None
            order = Order(reader.order.rows, packed)
        assert found.scale is not None
        groups = _format(found, tuple(weight.shape), rows.dtype)
        if groups is None or not all(_is_stored(one, rows) for one in _tensors(found)):
            return None
        if groups.bits == 8 and not _given(found.number.source):
            return None  # The program computes the bytes, from a packing that is not known.
        addition, bias = (None, bias) if bias is not None else mixed.added(node)
        zeros = None if found.zeros is None else found.zeros.source
        return Int4(node, a, found.number.source, found.scale.source, zeros, groups, bias, addition, order)
    except (Unsupported, Unknown):
        return None


def _tensors(weight: Weight) -> list[Any]:
    parts = (weight.number, weight.scale, weight.zeros)
    return [value(part.source) for part in parts if part is not None]


def _is_stored(part: Any, a: Any) -> bool:
    return bool(part.device == a.device and part.is_contiguous())


def _given(part: Any) -> bool:
    """Whether a tensor is an input of the graph, or a view of one."""
    while part.op == "call_function" and part.target in _VIEWS:
        part = part.args[0]
    return bool(part.op != "call_function")


def _format(weight: Weight, sizes: tuple[int, int], dtype: Any) -> Int4Format | None:
    """Return the format of a weight of `sizes` K and N, with activations of `dtype`; None if it is not in the key."""
    k, n = sizes
    if weight.number.wrapped:
        return None
    for size, (name, packing) in itertools.product(SIZES, PACKED.items()):
        if k % size or packing.added or not _is_packed(weight.number, packing, (n, k)):
            continue
        scaled = _is_scaled(weight.scale, packing, (n, k), size, dtype)
        zeros = _zeros(weight, packing, (n, k), size, dtype) if scaled else None
        if zeros is not None:
            return Int4Format(size, zeros, name)
    return None


def _is_scaled(scale: Stored | None, packing: Packing, sizes: tuple[int, int], size: int, a: Any) -> bool:
    """Whether each of `sizes` N and K has the scale of its group, beside activations of dtype `a`."""
    fp4, (n, k) = packing.dtype == FP4, sizes
    if scale is None or scale.power != fp4 or (fp4 and (size != MX_SIZE or a is not torch.bfloat16)):
        return False
    kind = extract.TORCH[packing.scale] if packing.scale else a
    same = scale.places == _each_group(packing, sizes, size, scale.item or 1)
    return same and _holds(scale, (kind,), n * k // size * kind.itemsize)


def _is_packed(number: Number, packing: Packing, sizes: tuple[int, int]) -> bool:
    """Whether the numbers of a weight of `sizes` N and K lie as those of a packing."""
    (n, k), eight = sizes, packing.bits == 8
    if (packing.bits, packing.dtype == FP4) != (number.bits, number.fp4) or n % (1 if packing.rows == "n" else 8):
        return False
    dtypes = BYTE_DTYPES if eight else WORD_DTYPES[packing.rows]
    if not _holds(number, dtypes, n * k * packing.bits // 8) or number.places != _numbers(packing, n, k):
        return False
    return not eight or number.signed == (value(number.source).dtype is torch.int8)


def _holds(part: Stored | Number, dtypes: Sequence[Any], nbytes: int) -> bool:
    """Whether the memory of a part is all that the weight has of it."""
    found = value(part.source)
    return found.dtype in dtypes and found.numel() * found.itemsize == nbytes


def _zeros(weight: Weight, packing: Packing, sizes: tuple[int, int], size: int, a: Any) -> str | None:
    """Return the dtype of the zero points, beside activations of dtype `a`; None if the packing has none like these."""
    (n, k), zeros, plus = sizes, weight.zeros, weight.number.plus
    if zeros is None:
        return "none" if not packing.zeros and plus == -_zero_number(weight.number) else None
    if isinstance(zeros, Stored):
        dtype, unit = value(zeros.source).dtype, zeros.item or 1
        known = not packing.zeros and plus == 0 and (zeros.item == 2 or dtype == a)
        if not known or not _holds(zeros, (dtype,), n * k // size * dtype.itemsize):
            return None
        same = zeros.places == _each_group(packing, sizes, size, unit)
        return extract.dtype_name(dtype) if same else None
    added = zeros.plus == packing.plus and plus == 0 if zeros.wrapped else zeros.plus == plus and not packing.plus
    if not packing.zero_order or not added or not _holds(zeros, (torch.int32,), n * k // size * packing.bits // 8):
        return None
    if zeros.places != _zeros_in_words(packing, sizes, size):
        return None
    return IN_WORDS if packing.bits == 8 else INT4


def _zero_number(number: Number) -> int:
    """The number that stands for a weight of zero without zero points."""
    if number.fp4:
        return 0
    return ZERO_NUMBER if number.bits == 4 else ZERO_BYTES["int8" if number.signed else "uint8"]


def _zeros_in_words(packing: Packing, sizes: tuple[int, int], size: int) -> Places:
    """Where the zero points that share words along N lie for each of a weight's K and N, in four bits."""
    (n, k), many, unit = sizes, packing.in_word, packing.bits // 4
    order = Places.listed(packing.zero_order).scaled(unit)
    groups = _each_group(packing, (n // many, k), size, many * unit)
    columns = merged((*groups.dims[1], *order.dims[0]))
    return Places(order.first, (groups.dims[0], columns))


def _numbers(packing: Packing, n: int, k: int) -> Places:
    """Where the numbers [K, N] of a weight lie, in four bits."""
    unit = packing.bits // 4
    order, many = Places.listed(packing.order).scaled(unit), len(packing.order)
    outer, inner = Places.dense(packing.sizes(n, k, many * packing.bits // 8), many * unit).dims
    dims = {"k": outer, "n": inner} if packing.rows == "k" else {"k": inner, "n": outer}
    dims[packing.packed] = merged((*dims[packing.packed], *order.dims[0]))
    return Places(order.first, (dims["k"], dims["n"]))


def _each_group(packing: Packing, sizes: tuple[int, int], size: int, unit: int) -> Places:
    """Where the numbers of groups lie for each of a weight's K and N, each `unit` after the one before."""
    outer, inner = Places.dense(packing.groups(*sizes, size), unit).dims
    along_k, along_n = (outer, inner) if packing.rows == "k" else (inner, outer)
    return Places(0, (merged((*along_k, (size, 0))), along_n))
