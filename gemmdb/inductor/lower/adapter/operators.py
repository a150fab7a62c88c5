"""Calls of operators that Inductor does not lower, from within a lowering of ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.lowering import fallback_handler, lowerings


def call(target: Any, arguments: Sequence[Any], fakes: Sequence[Any]) -> Any:
    """Return the result of a call. Each tensor lies in memory as its fake tensor of the graph says, because the
    operator may depend on it. `fakes`: one for each argument, None for what is no tensor."""
    handler = lowerings.get(target) or fallback_handler(target, add_to_fallback_set=False)
    return handler(*(one if fake is None else _as(one, fake) for one, fake in zip(arguments, fakes, strict=True)))


def allocated(sizes: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Any:
    """Return fresh row-major memory, whose content is undefined, for an operator that writes to it."""
    made = lowerings[torch.ops.aten.empty.memory_format](list(sizes), dtype=dtype, device=device)
    made.realize()
    made.freeze_layout()
    return made


def _as(node: Any, fake: torch.Tensor) -> Any:
    strides = [step.node.expr if isinstance(step, torch.SymInt) else step for step in fake.stride()]
    return ir.ExternKernel.require_exact_strides(node, strides)
