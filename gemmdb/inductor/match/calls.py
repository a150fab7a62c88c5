"""Arguments of torch's scaled GEMMs (`_scaled_mm`, `_scaled_mm_v2`) and grouped GEMMs (`_grouped_mm`, which
`torch.nn.functional.grouped_mm` and transformers' experts call, and `_scaled_grouped_mm`).

Raises Unsupported, with the reason, for calls that no Problem can express: two-level scales, swizzled scales, other
block sizes, a scaled output; groups along the columns, or groups of one size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gemmdb.inductor.match import extract, fx
from gemmdb.inductor.match.fx import Unsupported, known, value
from gemmdb.key.operands import Bias
from gemmdb.key.ops import SCALE_BLOCK, SCALES

aten = torch.ops.aten
_RECIPES = ((0, 0), (1, 1), (4, 5))
"""Scaling recipe of A and B, in the order of SCALES: both TensorWise, both RowWise, or BlockWise1x128 and
BlockWise128x128 of torch.nn.functional.ScalingType."""


@dataclass(frozen=True)
class Call:
    """The arguments of a GEMM: FX nodes or Inductor IR nodes. `scales`: scales of fp8 A and B, else empty. `bias`: None
    without one. `offsets`: the end of each group; None without groups. `fast`: the tensor core may keep sums in its own
    accumulator. `recipes`: the scaling of A and B if the operator specifies it; None if the sizes imply it."""

    a: Any
    b: Any
    scales: tuple[Any, ...] = ()
    bias: Any = None
    offsets: Any = None
    fast: bool = False
    recipes: tuple[int, int] | None = None


def scaled_targets() -> list[Any]:
    """Operators with scales and without groups that exist in this torch."""
    return [getattr(aten, name).default for name in ("_scaled_mm", "_scaled_mm_v2") if hasattr(aten, name)]


def read(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """Return the Call of one of the four operators. Raises Unsupported if no Problem describes it."""
    schema = target._schema.arguments
    given = {one.name: one.default_value for one in schema if one.has_default_value()}
    given |= dict(zip((one.name for one in schema), args, strict=False)) | dict(kwargs)
    if given.get("scale_result") is not None:
        raise Unsupported("the output is scaled")
    recipes = None
    if "recipe_a" in given:
        recipes = _recipes(given)
        given |= {name: given[name][0] for name in ("scale_a", "scale_b")}
    scales = tuple(given[name] for name in ("scale_a", "scale_b") if name in given)
    fast = bool(given.get("use_fast_accum", False))
    return Call(given["self"], given["mat2"], scales, given.get("bias"), given.get("offs"), fast, recipes)


def _recipes(given: Mapping[str, Any]) -> tuple[int, int]:
    """Return the scaling of A and B. Raises Unsupported unless there is one level of scales, without a swizzle."""
    if any(len(given[name]) != 1 for name in ("scale_a", "scale_b", "recipe_a", "recipe_b")):
        raise Unsupported("multi-level scales")
    if any(given["swizzle_a"]) or any(given["swizzle_b"]):
        raise Unsupported("swizzled scales")
    if given["contraction_dim"]:
        raise Unsupported("other dimensions are contracted")
    first, second = int(given["recipe_a"][0]), int(given["recipe_b"][0])
    if (first, second) not in _RECIPES:
        raise Unsupported("scales of other block sizes, or of two kinds")
    return first, second


def scaled_fields(call: Call) -> dict[str, Any]:
    """Return the Problem's scale and bias fields for a Call of FX nodes without groups."""
    a, first, second = (value(node) for node in (call.a, *call.scales))
    if not first.dtype == second.dtype == torch.float32:
        raise Unsupported(f"scales of {first.dtype} and {second.dtype}")
    if not first.device == second.device == a.device:
        raise Unsupported("a scale on another device")
    m, n = a.shape[0], value(call.b).shape[1]
    kind = _kind(first, second, (m, n, a.shape[1]))
    if call.recipes not in (None, _RECIPES[SCALES.index(kind)]):
        raise Unsupported("scale sizes that do not match their recipes")
    bias: Bias | None = None
    if call.bias is not None:
        bias = extract.bias(value(call.bias), extract.hint(m), extract.hint(n))
    return {"scales": kind, "bias": bias}


def _kind(first: Any, second: Any, sizes: tuple[Any, Any, Any]) -> str:
    """Return the kind of two scales, one of SCALES."""
    m, n, k = sizes
    if all(one.dim() <= 2 and all(known(size == 1) for size in one.shape) for one in (first, second)):
        return "tensor"
    if first.dim() == second.dim() == 2:
        row = fx.same_sizes(first.shape, (m, 1)) and fx.same_sizes(second.shape, (1, n))
        dense = all(known(one.stride(i) == 1) or known(one.shape[i] == 1) for i, one in enumerate((first, second)))
        if row and dense:
            return "row"
        deep, wide = (-(-size // SCALE_BLOCK) for size in (k, n))
        # `_scaled_mm_v2` pads the scales to a multiple of four blocks along K.
        depth = any(known(second.shape[0] == size) for size in (deep, -(-deep // 4) * 4))
        if depth and all(map(known, (first.shape[0] == m, first.shape[1] == deep, second.shape[1] == wide))):
            return "block"
    shapes = " and ".join(str([extract.hint(size) for size in one.shape]) for one in (first, second))
    raise Unsupported(f"scales of the sizes {shapes}")


def grouped_fields(call: Call) -> dict[str, Any]:
    """Return the Problem's group fields for a Call of FX nodes. Groups divide the rows of A, or K."""
    if call.bias is not None:
        raise Unsupported("a bias, which torch does not support yet")
    dims = value(call.a).dim(), value(call.b).dim()
    if dims == (3, 3):
        raise Unsupported("all groups have the same size, as in a bmm")
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
    fields = {"groups": int(offsets.shape[0]), "ragged": ragged}
    if not call.scales:
        return fields
    # torch accepts scales only with fp8 operands, and one kind of scales per dtype.
    dtypes = [value(scale).dtype for scale in call.scales]
    if dtypes != [torch.float32, torch.float32]:
        raise Unsupported(f"scales of {dtypes[0]} and {dtypes[1]}")
    if ragged == "k":
        raise Unsupported("the groups divide K, and each has its own scales")
    return {**fields, "scales": "row"}
