"""The outputs of two compiles of a program, for the same inputs and random numbers, and how far they are apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any


def answer(function: Callable[..., Any], inputs: Any) -> Any:
    """The output of a compiled function for copies of its inputs, with the same random seed."""
    import torch

    # The other GPUs draw no random numbers, and reading their state would create contexts on them.
    with torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_initialized() else []):
        torch.manual_seed(0)
        return function(*copied(inputs))


def copied(inputs: Any) -> Any:
    """Copies of all tensors, with the same strides: other strides would cause another compile."""
    import torch
    from torch.utils import _pytree

    def copied(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return value
        value = value.detach()
        if type(value) is not torch.Tensor:
            return value.clone()
        span = sum((size - 1) * step for size, step in zip(value.shape, value.stride(), strict=True)) + 1
        memory = value.as_strided((span if value.numel() else 0,), (1,)).clone()
        return memory.as_strided(value.shape, value.stride())

    return _pytree.tree_map(copied, inputs)


def difference(wanted: Any, found: Any) -> float:
    """The largest difference of two outputs, relative to the largest value of its tensor. It is infinite if only one
    of them has a NaN or an infinity at some place."""
    import torch
    from torch.utils import _pytree

    worst = 0.0
    for a, b in zip(_pytree.tree_leaves(wanted), _pytree.tree_leaves(found), strict=True):
        if isinstance(a, torch.Tensor) and a.numel():
            a, b = (torch.view_as_real(one.resolve_conj()) if one.is_complex() else one for one in (a, b))
            a, b = a.double(), b.double()
            same = (a == b) | (a.isnan() & b.isnan())
            off = (a - b).abs().masked_fill(same, 0.0).nan_to_num(nan=math.inf, posinf=math.inf)
            scale = max(a.abs().nan_to_num(nan=0.0, posinf=0.0).max().item(), 1e-30)
            worst = max(worst, off.max().item() / scale)
    return worst
