"""GEMMs with an int4 weight. In the joint graph: those whose program unpacks the weight itself, two numbers of each
byte, counted from a zero point, times the scale of their group. In the post-grad graph: ATen's for a tiled weight, our
own operator, and those that were not rewritten.

The joint stage has to find them, because freezing then makes a 16-bit weight of all that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gemmdb.inductor.match import epilogues, extract, fx, mixed, ops
from gemmdb.inductor.match.extract import WEIGHT_MARK, Gemm
from gemmdb.inductor.match.fx import Unsupported, value
from gemmdb.inductor.match.int4_unpacking import HALF_DTYPES, Whole, read
from gemmdb.key.int4 import INTEGERS, SIZES, TILED, WEIGHT, ZERO_NUMBER, Int4Format
from gemmdb.key.operands import Bias
from gemmdb.key.problem import Problem

aten = torch.ops.aten
TILED_MM = aten._weight_int4pack_mm.default
_PACKINGS = {inner: packing for packing, inner in TILED.items()}


@dataclass
class Int4:
    """One GEMM: its node, the activation, the parts of the weight, and the bias: of an addmm, or added by `addition`
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
        """Store what the post-grad stage needs to build the same Problem."""
        m, n = extract.matrix(value(self.a)).sizes[0], extract.hint(value(self.node).shape[-1])
        bias = None if self.bias is None else extract.bias(value(self.bias), m, n).text
        mixed.attach({
            "groups": (self.groups.size, self.groups.zeros, self.groups.packing), "constant": constant, "bias": bias,
            "sizes": (n, extract.hint(value(self.a).shape[-1])),
            "fusion": "none" if bias else epilogues.fusion(self.node),
        }, self.node, self.addition)  # fmt: skip

    def rewrite(self, graph: Any) -> None:
        """Replace the GEMM by `gemmdb::int4_mm`. A bias stays a pointwise addition after it."""
        node = self.node

        def flat(numbers: Any) -> Any:
            """The numbers of all groups as [N, K / size]; None if there are none."""
            flat_already = numbers is None or value(numbers).dim() == 2
            return numbers if flat_already else fx.call(graph, aten.squeeze.dim, (numbers, 2))

        with graph.inserting_before(node):
            args = (self.a, self.weight, flat(self.scale), flat(self.zeros), self.groups.size, self.groups.packing)
            result = fx.call(graph, ops.register_int4(), args, node.meta)
            if node.target is aten.addmm.default:
                result = fx.call(graph, aten.add.Tensor, (result, self.bias), node.meta)
        node.replace_all_uses_with(result)
        graph.erase_node(node)


def find(node: Any) -> Int4 | None:
    """The GEMM with an int4 weight whose multiplication is `node`, None for anything else."""
    operands = mixed.operands(node)
    if operands is None or node.target is aten.bmm.default:
        return None
    a, b, bias = operands
    try:
        dtype = value(a).dtype
        transposed = b.target is aten.t.default or (b.target is aten.permute.default and list(b.args[1]) == [1, 0])
        if dtype not in HALF_DTYPES or value(b).dtype != dtype or not transposed or value(b).dim() != 2:
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


def _is_stored(found: Whole, a: Any) -> bool:
    """Whether the parts of a weight lie in memory as the key says, with scales of the activation's dtype."""
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


def tiled(node: Any) -> Gemm | None:
    """ATen's GEMM: x [M, K], packed [N / 8, K / (16 inner), 32, inner / 2], group size, scales and zero points."""
    x, packed, size, scale = node.args
    weight, numbers = value(packed), value(scale)
    if weight.dim() != 4:
        raise Unsupported("a packed weight of another device")
    packing = _PACKINGS.get(2 * weight.shape[3])
    if packing is None or value(x).device.type != "cuda":
        raise Unsupported(f"a weight packed as {list(weight.shape)}")
    if not weight.is_contiguous() or not numbers.is_contiguous():
        raise Unsupported("a packed weight with gaps")
    groups = Int4Format(size, extract.dtype_name(numbers.dtype), packing)
    _, added = mixed.added(node)
    bias = None if added is None else extract.bias(value(added), *map(extract.hint, value(node).shape))
    fusion = epilogues.fusion(node) if bias is None else "none"
    return _gemm(node, x, groups, extract.is_constant(packed), fusion, bias)


def int4_op(node: Any) -> Gemm | None:
    """Our own op (`ops.register_int4`): x [M, K], the tensors of the weight, group size and packing."""
    x, packed, scale, zeros, size, packing = node.args
    mark = node.meta.get("custom", {}).get(WEIGHT_MARK, {})
    starts = scale if packing in TILED else zeros
    groups = Int4Format(size, "none" if starts is None else extract.dtype_name(value(starts).dtype), packing)
    if "groups" in mark:  # Both stages must look up the same Problem, and by now the bias is a separate addition.
        bias = Bias.parse(mark["bias"]) if mark["bias"] else None
        return _gemm(node, x, groups, mark["constant"], mark["fusion"], bias)
    return _gemm(node, x, groups, extract.is_constant(packed), epilogues.fusion(node), None)


def marked(node: Any, x: Any, mark: Mapping[str, Any], bias: Bias | None) -> Gemm | None:
    """A GEMM that was not rewritten, by its mark."""
    return _gemm(node, x, Int4Format(*mark["groups"]), mark["constant"], mark["fusion"], bias)


def absorb(node: Any) -> Any:
    """Replace ATen's GEMM by our own op, which has a lowering. Returns the new node."""
    x, packed, size, scale = node.args
    packing = _PACKINGS[2 * value(packed).shape[3]]
    graph = node.graph
    with graph.inserting_before(node):
        made = fx.call(graph, ops.register_int4(), (x, packed, scale, None, size, packing), node.meta)
    node.replace_all_uses_with(made)
    graph.erase_node(node)
    return made


def _gemm(node: Any, x: Any, groups: Int4Format, constant: bool, fusion: str, bias: Bias | None) -> Gemm | None:
    rows = value(x)
    a = extract.tensor(rows)
    m, k, n = *a.sizes, extract.hint(value(node).shape[-1])
    problem = Problem(
        "mixed_mm", m, n, k, a.operand, WEIGHT, a.dtype, bias, fusion=fusion,
        numerics=extract.numerics(a.dtype, rows.device.type), constant=constant, int4=groups,
    )  # fmt: skip
    sizes = {"m": rows.shape[0], "n": value(node).shape[-1], "k": rows.shape[-1]}
    return extract.gemm(node, problem, sizes, rows.device)
