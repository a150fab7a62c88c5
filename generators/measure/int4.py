"""An int4 weight as tensors: random ones, and how programs multiply by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gemmdb.errors import InputError
from gemmdb.inductor.match.int4_weight import FROM, dequantised
from gemmdb.key.int4 import Int4Format
from gemmdb.key.problem import Problem


@dataclass(frozen=True)
class Weight:
    """The tensors of an int4 weight [n, k], as `gemmdb.key.int4` describes them: `packed`, the scales, and the zero
    points if they are not beside the scales."""

    packed: torch.Tensor
    scale: torch.Tensor
    zeros: torch.Tensor | None = None

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Those that are present."""
        return tuple(one for one in (self.packed, self.scale, self.zeros) if one is not None)


def blank(problem: Problem, device: torch.device, dtype: torch.dtype) -> Weight:
    """An uninitialised weight. `dtype`: that of the activation, of which the scales are."""
    own, n, k = _own(problem), problem.n, problem.k
    count = k // own.size
    if own.inner:
        sizes = (n // 8, k // (16 * own.inner), 32, own.inner // 2)
        packed = torch.empty(sizes, dtype=torch.int32, device=device)
        return Weight(packed, torch.empty(count, n, 2, dtype=dtype, device=device))
    zeros = None
    if own.zeros != "none":
        kind = {"uint8": torch.uint8, "int8": torch.int8}.get(own.zeros, dtype)
        zeros = torch.empty(n, count, dtype=kind, device=device)
    packed = torch.empty(n, k // 2, dtype=torch.uint8, device=device)
    return Weight(packed, torch.empty(n, count, dtype=dtype, device=device), zeros)


def filled(problem: Problem, random: torch.Generator, dtype: torch.dtype) -> Weight:
    """A random weight whose numbers are near 1. Scales and zero points differ from group to group by much more than the
    error of a kernel, so one that takes those of another group is found out."""
    own, device = _own(problem), torch.device(random.device)
    weight = blank(problem, device, dtype)
    bits = torch.iinfo(weight.packed.dtype)
    weight.packed.random_(bits.min, bits.max + 1, generator=random)
    sizes = (problem.k // own.size, problem.n)
    scale = torch.rand(sizes, generator=random, device=device).add(0.5).mul(0.2)
    if own.inner:
        added = torch.rand(sizes, generator=random, device=device).sub(0.5)
        weight.scale.copy_(torch.stack([scale, added], dim=-1))
        return weight
    weight.scale.copy_(scale.t())
    if weight.zeros is not None:
        # About the middle of the numbers.
        weight.zeros.copy_(torch.randint(FROM - 2, FROM + 3, sizes[::-1], generator=random, device=device))
    return weight


def multiply(problem: Problem, a: torch.Tensor, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """`a` [m, k] times the weight, as a program does it: by ATen's operator for its layouts, which exists on GPUs only,
    else by a linear layer with the dequantised weight."""
    packed, scale, *zeros = tensors
    own = _own(problem)
    if own.inner:
        return torch.ops.aten._weight_int4pack_mm(a, packed, own.size, scale)
    weight = dequantised(packed, scale, zeros[0] if zeros else None, own, a.dtype)
    return torch.nn.functional.linear(a, weight)


def _own(problem: Problem) -> Int4Format:
    if problem.int4 is None:
        raise InputError(f"{problem.text} has no int4 weight")
    return problem.int4
