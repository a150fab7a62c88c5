"""Products with an int4 weight that a program unpacks itself, in the joint graph: two numbers of each byte, counted
from a zero point, times the scale of their group, by a linear layer.

Later, freezing has made a 16-bit weight of all that. A product that is not rewritten gets the mark of `mixed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gemmdb.inductor.match import epilogues, extract, mixed, ops, reading, rewriting
from gemmdb.inductor.match.extract import Unsupported, value
from gemmdb.inductor.match.int4_numbers import Whole, read
from gemmdb.inductor.match.int4_weight import FROM
from gemmdb.key.int4 import INTEGERS, SIZES, Int4Format

aten = torch.ops.aten
_HALVES = (torch.float16, torch.bfloat16)


@dataclass
class Int4:
    """One product: its node, the activation, the parts of the weight, and the bias: of an addmm, or added by `addition`
    after the product."""

    node: Any
    a: Any
    weight: Any
    scale: Any
    zeros: Any
    groups: Int4Format
    bias: Any = None
    addition: Any = None

    def leave_mark(self, constant: bool) -> None:
        """Store what the post-grad stage needs to build the same Problem: on the product, and on the addition that may
        become an addmm with it."""
        m, n = extract.matrix(value(self.a)).sizes[0], value(self.node).shape[-1]
        bias = None if self.bias is None else extract.bias(value(self.bias), m, extract.hint(n)).text
        mark = {
            "groups": (self.groups.size, self.groups.zeros, self.groups.packing), "constant": constant, "bias": bias,
            "sizes": (extract.hint(n), extract.hint(value(self.a).shape[-1])),
            "fusion": "none" if bias else epilogues.fusion(self.node),
        }  # fmt: skip
        # This is the metadata that Inductor copies to the nodes that replace a node.
        for node in (self.node, self.addition):
            if node is not None:
                node.meta["custom"] = {**node.meta.get("custom", {}), reading.MARK: mark}

    def rewrite(self, graph: Any) -> None:
        """Replace the product by `gemmdb::int4_mm`. A bias stays a pointwise addition after it."""
        node = self.node
        with graph.inserting_before(node):
            scale, zeros = (_flat(graph, one) for one in (self.scale, self.zeros))
            args = (self.a, self.weight, scale, zeros, self.groups.size, self.groups.packing)
            result = rewriting.call(graph, ops.register_int4(), args, node.meta)
            if node.target is aten.addmm.default:
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
        found = None if stored is None else read(stored)
        if not isinstance(found, Whole) or found.scale is None or not _dense(found, value(a)):
            return None
        addition = None
        if bias is None:
            addition, bias = mixed.added(node)
        return Int4(node, a, found.packed, found.scale, found.zeros, _groups(found), bias, addition)
    except Unsupported:
        return None


def _groups(found: Whole) -> Int4Format:
    zeros = "none" if found.zeros is None else extract.dtype_name(value(found.zeros).dtype)
    return Int4Format(found.size, zeros, found.packing)


def _dense(found: Whole, a: Any) -> bool:
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
