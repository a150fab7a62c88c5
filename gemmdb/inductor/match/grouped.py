"""Products of groups: torch's `_grouped_mm`, which `torch.nn.functional.grouped_mm` calls, and transformers' experts;
and `_scaled_grouped_mm`, of fp8 operands with scales.

The groups divide the rows of A, or the dimension that is summed. For what else the operators can express, `fields`
raises Unsupported with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gemmdb.inductor.match import extract
from gemmdb.inductor.match.extract import Unsupported, value

aten = torch.ops.aten


@dataclass(frozen=True)
class Call:
    """The arguments of a product: nodes of the graph, or of Inductor's IR. `offsets`: where each group ends; None where
    each operand is a batch. `bias` is None if there is none. `scales`: of fp8 operands those of A and B. `fast`: the
    matrix unit may keep the sums of these in its own accumulator. `result`: what scales the output, if anything."""

    a: Any
    b: Any
    offsets: Any
    bias: Any
    scales: tuple[Any, ...] = ()
    fast: bool = False
    result: Any = None

    @property
    def operands(self) -> tuple[Any, ...]:
        """A, B, the offsets, and the scales of fp8 operands."""
        return self.a, self.b, self.offsets, *self.scales


def read(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """The Call of `aten._grouped_mm` or `aten._scaled_grouped_mm`."""
    names = [argument.name for argument in target._schema.arguments]
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    scales = tuple(given[name] for name in ("scale_a", "scale_b") if name in given)
    rest = scales, bool(given.get("use_fast_accum", False)), given.get("scale_result")
    return Call(given["self"], given["mat2"], given.get("offs"), given.get("bias"), *rest)


def fields(call: Call) -> dict[str, Any]:
    """The fields of the Problem of a Call of FX nodes that say how it is divided. Raises Unsupported if no Problem
    describes it."""
    if call.bias is not None:
        raise Unsupported("a bias, which torch does not add yet")
    dims = value(call.a).dim(), value(call.b).dim()
    if dims == (3, 3):
        raise Unsupported("all groups have one size, as in a bmm")
    if dims == (3, 2):
        raise Unsupported("the groups divide the columns")
    if call.result is not None:
        raise Unsupported("the output is scaled")
    if call.offsets is None:
        raise Unsupported("no offsets")
    offsets = value(call.offsets)
    if offsets.dtype != torch.int32 or offsets.dim() != 1:
        raise Unsupported(f"offsets of {offsets.dtype} {tuple(offsets.shape)}")
    if extract.bounds(offsets.shape[0]) is not None:
        raise Unsupported("a symbolic number of groups")
    ragged = "m" if dims == (2, 3) else "k"
    return {"groups": int(offsets.shape[0]), "ragged": ragged, **_scaled(call, ragged)}


def _scaled(call: Call, ragged: str) -> dict[str, Any]:
    """The fields of fp8 operands: torch takes no other dtypes with scales, and scales of one kind for each dtype."""
    if not call.scales:
        return {}
    dtypes = [value(scale).dtype for scale in call.scales]
    if dtypes != [torch.float32, torch.float32]:
        raise Unsupported(f"scales of {dtypes[0]} and {dtypes[1]}")
    if ragged == "k":
        raise Unsupported("the groups divide K, and each has scales of its own")
    return {"scales": "row"}
