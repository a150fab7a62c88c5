"""Products of groups: torch's `_grouped_mm`, which `torch.nn.functional.grouped_mm` calls, and transformers' experts.

The groups divide the rows of A, or the dimension that is summed. For what else the operator can express, `fields`
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
    each operand is a batch. `bias` is None if there is none."""

    a: Any
    b: Any
    offsets: Any
    bias: Any

    @property
    def operands(self) -> tuple[Any, ...]:
        """A, B and the offsets."""
        return self.a, self.b, self.offsets


def read(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """The Call of `aten._grouped_mm`."""
    names = [argument.name for argument in aten._grouped_mm.default._schema.arguments]
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    return Call(given["self"], given["mat2"], given.get("offs"), given.get("bias"))


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
    if call.offsets is None:
        raise Unsupported("no offsets")
    offsets = value(call.offsets)
    if offsets.dtype != torch.int32 or offsets.dim() != 1:
        raise Unsupported(f"offsets of {offsets.dtype} {tuple(offsets.shape)}")
    if extract.bounds(offsets.shape[0]) is not None:
        raise Unsupported("a symbolic number of groups")
    ragged = "m" if dims == (2, 3) else "k"
    return {"groups": int(offsets.shape[0]), "ragged": ragged}
