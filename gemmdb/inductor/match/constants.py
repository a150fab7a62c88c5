"""The tensors that are constants of a compile: those of its graph, and parameters and buffers that freezing fixes."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gemmdb.inductor.lower.adapter import state
from gemmdb.inductor.match.positions import Unknown

aten, prims = torch.ops.aten, torch.ops.prims
_COPIES = (
    aten.lift_fresh_copy.default, aten.clone.default, aten.alias.default, prims.device_put.default,
    prims.convert_element_type.default,
)  # fmt: skip


@dataclass(frozen=True)
class Constants:
    """`frozen`: the tensors of placeholders that freezing makes constants."""

    frozen: Mapping[Any, Any]

    def tensor(self, node: Any) -> torch.Tensor | None:
        """Return the tensor of a constant, None for anything else."""
        if node.op == "placeholder":
            found: torch.Tensor | None = self.frozen.get(node)
            return found
        found = operator.attrgetter(node.target)(node.graph.owning_module) if node.op == "get_attr" else None
        return None if isinstance(found, torch._subclasses.FakeTensor) else found

    def copied(self, node: Any) -> torch.Tensor | None:
        """Return the tensor of a constant that `node` copies or casts, None for anything else."""
        while node.op == "call_function" and node.target in _COPIES:
            node = node.args[0]
        return self.tensor(node)

    def floats(self, node: Any) -> list[float]:
        """Return the numbers of a constant, or of a copy of one. Raises Unknown."""
        found = self.copied(node)
        if found is None or not found.dtype.is_floating_point:
            raise Unknown
        return state.floats(found)
