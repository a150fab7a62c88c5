"""An int4 weight as tensors: random ones, the numbers in them, and how programs multiply by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gemmdb.errors import InputError
from gemmdb.key.int4 import Groups
from gemmdb.key.problem import Problem

FROM = 8
"""The number that stands for a weight of zero without zero points."""


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
        # Symmetric about 8, like the numbers themselves.
        weight.zeros.copy_(torch.randint(6, 11, sizes[::-1], generator=random, device=device))
    return weight


def numbers(problem: Problem, packed: torch.Tensor) -> torch.Tensor:
    """The numbers from 0 to 15 of a packed weight as uint8 [n, k]."""
    own, n, k = _own(problem), problem.n, problem.k
    if not own.inner:
        first, second = packed & 15, packed >> 4
        order = (second, first) if own.packing == "high-first" else (first, second)
        return torch.stack(order, dim=-1).reshape(n, k)
    # A word of lane 4 r + c has row r of eight. Its bits 4 i and 16 + 4 i are columns 2 c and 2 c + 1 of eight columns.
    words = packed.reshape(n // 8, k // (16 * own.inner), 8, 4, own.inner // 2)
    shifts = 4 * torch.arange(4, device=packed.device)
    parts = [(words.unsqueeze(-1) >> (shifts + half)).bitwise_and(15).to(torch.uint8) for half in (0, 16)]
    found = torch.stack(parts, dim=-1)  # [n / 8, k / step, row, column pair, word, eight columns, half]
    return found.permute(0, 2, 1, 4, 5, 3, 6).reshape(n, k)


def dequantised(
    problem: Problem, packed: torch.Tensor, scale: torch.Tensor, zeros: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """The weight [n, k] of `dtype`, computed in it as a program does."""
    own, n, k = _own(problem), problem.n, problem.k
    weight = numbers(problem, packed).to(dtype).view(n, k // own.size, own.size)
    if own.inner:
        by, added = (scale[..., which].t().to(dtype).unsqueeze(-1) for which in (0, 1))
        return ((weight - FROM) * by + added).view(n, k)
    start = FROM if zeros is None else zeros.to(dtype).unsqueeze(-1)
    return ((weight - start) * scale.to(dtype).unsqueeze(-1)).view(n, k)


def multiply(problem: Problem, a: torch.Tensor, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """`a` [m, k] times the weight, as a program does it: by ATen's operator for its layouts, which exists on GPUs only,
    else by a linear layer with the dequantised weight."""
    packed, scale, *zeros = tensors
    own = _own(problem)
    if own.inner:
        return torch.ops.aten._weight_int4pack_mm(a, packed, own.size, scale)
    weight = dequantised(problem, packed, scale, zeros[0] if zeros else None, a.dtype)
    return torch.nn.functional.linear(a, weight)


def _own(problem: Problem) -> Groups:
    if problem.groups is None:
        raise InputError(f"{problem.text} has no int4 weight")
    return problem.groups
