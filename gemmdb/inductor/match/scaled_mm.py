"""Products of fp8 operands with scales: torch's `_scaled_mm`, and `_scaled_mm_v2` if it means the same.

No Problem describes two levels of scales, a swizzle, scales of other blocks, or a scaled output. For those, `read` and
`kind` raise Unsupported with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gemmdb.inductor.match import extract
from gemmdb.inductor.match.extract import Unsupported, known, value
from gemmdb.key.operands import Bias
from gemmdb.key.ops import SCALE_BLOCK, SCALES

aten = torch.ops.aten
_RECIPES = ((0, 0), (1, 1), (4, 5))
"""How A and B are scaled, in the order of SCALES: both TensorWise, both RowWise, or BlockWise1x128 and
BlockWise128x128 of torch.nn.functional.ScalingType."""


@dataclass(frozen=True)
class Call:
    """The arguments of a product: nodes of the graph, or of Inductor's IR. `scale_a` and `scale_b` multiply A and B.
    `bias` is added; None if there is none. `fast`: the matrix unit may keep the sums in its own accumulator.
    `recipes`: how A and B are scaled if the operator says so; None if it follows from the sizes."""

    a: Any
    b: Any
    scale_a: Any
    scale_b: Any
    bias: Any
    fast: bool
    recipes: tuple[int, int] | None = None

    @property
    def operands(self) -> tuple[Any, ...]:
        """A, B, their scales and the bias, which may be None."""
        return self.a, self.b, self.scale_a, self.scale_b, self.bias


def targets() -> list[Any]:
    """Those of the two operators that this torch has."""
    return [getattr(aten, name).default for name in ("_scaled_mm", "_scaled_mm_v2") if hasattr(aten, name)]


def read(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """The Call of one of `targets`. Raises Unsupported if no Problem describes it."""
    schema = target._schema.arguments
    given = {one.name: one.default_value for one in schema if one.has_default_value()}
    given |= dict(zip((one.name for one in schema), args, strict=False)) | dict(kwargs)
    if given.get("scale_result") is not None:
        raise Unsupported("the output is scaled")
    recipes = None
    if "recipe_a" in given:
        recipes = _recipes(given)
        given |= {name: given[name][0] for name in ("scale_a", "scale_b")}
    return Call(
        given["self"], given["mat2"], given["scale_a"], given["scale_b"], given["bias"], bool(given["use_fast_accum"]),
        recipes,
    )  # fmt: skip


def _recipes(given: Mapping[str, Any]) -> tuple[int, int]:
    """How A and B are scaled. Raises Unsupported unless there is one level of scales, without a swizzle."""
    if any(len(given[name]) != 1 for name in ("scale_a", "scale_b", "recipe_a", "recipe_b")):
        raise Unsupported("several levels of scales")
    if any(given["swizzle_a"]) or any(given["swizzle_b"]):
        raise Unsupported("swizzled scales")
    if given["contraction_dim"]:
        raise Unsupported("other dimensions are contracted")
    first, second = int(given["recipe_a"][0]), int(given["recipe_b"][0])
    if (first, second) not in _RECIPES:
        raise Unsupported("scales of other blocks, or of two kinds")
    return first, second


def bias(call: Call) -> Bias | None:
    """The class of the bias of a Call of FX nodes; None if it has none."""
    if call.bias is None:
        return None
    m, n = value(call.a).shape[0], value(call.b).shape[1]
    return extract.bias(value(call.bias), extract.hint(m), extract.hint(n))


def kind(call: Call) -> str:
    """The kind of the scales, one of SCALES, of a Call of FX nodes. Raises Unsupported for any other."""
    a, first, second = (value(node) for node in (call.a, call.scale_a, call.scale_b))
    if not first.dtype == second.dtype == torch.float32:
        raise Unsupported(f"scales of {first.dtype} and {second.dtype}")
    if not first.device == second.device == a.device:
        raise Unsupported("a scale in the memory of another device")
    found = _kind(first, second, (a.shape[0], value(call.b).shape[1], a.shape[1]))
    if call.recipes not in (None, _RECIPES[SCALES.index(found)]):
        raise Unsupported("scales of other sizes than their recipes say")
    return found


def _kind(first: Any, second: Any, sizes: tuple[Any, Any, Any]) -> str:
    m, n, k = sizes
    single = [one.dim() <= 2 and all(known(size == 1) for size in one.shape) for one in (first, second)]
    if all(single):
        return "tensor"
    if first.dim() == second.dim() == 2:
        rows = known(first.shape[0] == m) and known(first.shape[1] == 1) and _dense(first, 0)
        columns = known(second.shape[1] == n) and known(second.shape[0] == 1) and _dense(second, 1)
        if rows and columns:
            return "row"
        deep, wide = (-(-size // SCALE_BLOCK) for size in (k, n))
        # `_scaled_mm_v2` wants room for a multiple of four blocks along K.
        depth = any(known(second.shape[0] == size) for size in (deep, -(-deep // 4) * 4))
        if depth and all(map(known, (first.shape[0] == m, first.shape[1] == deep, second.shape[1] == wide))):
            return "block"
    shapes = " and ".join(str([extract.hint(size) for size in one.shape]) for one in (first, second))
    raise Unsupported(f"scales of the sizes {shapes}")


def _dense(scale: Any, dim: int) -> bool:
    return known(scale.stride(dim) == 1) or known(scale.shape[dim] == 1)
