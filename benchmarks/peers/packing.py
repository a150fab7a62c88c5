"""Weights as rivals store them, from the operands of a problem. Everything here runs on a CPU. Imports torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gemmdb.inductor.match.ops import numbers
from gemmdb.key.problem import Problem

MARLIN_TILE = 8
"""Scales of a Marlin weight lie in blocks of 8 x 8 columns, transposed."""
MARLIN_PAIRS = (0, 1, 8, 9, 16, 17, 24, 25)
"""The columns of 32 that a thread of a Marlin kernel holds, if a column has one scale; its neighbors have the next
two."""


@dataclass(frozen=True)
class Weight:
    """A weight as integers that count from the middle. `codes` [n, k] uint8: the value is (code - 2**(bits - 1)) *
    scale. `scale` [n, groups], of the activation's dtype."""

    codes: torch.Tensor
    scale: torch.Tensor
    bits: int

    @property
    def exact(self) -> torch.Tensor:
        """The weight [n, k] in float64."""
        value = self.codes.double() - 2 ** (self.bits - 1)
        return value * self.scale.double().repeat_interleave(value.shape[1] // self.scale.shape[1], 1)


def weight_of(problem: Problem, b: torch.Tensor, scale: torch.Tensor) -> Weight:
    """The weight of a mixed_mm: its int8 B [k, n] with a scale per column, or a packed int4 B without zero points."""
    if problem.int4 is not None:
        return Weight(numbers(b, problem.int4).to(torch.uint8), scale, 4)
    codes = (b.t().to(torch.int16) + 128).to(torch.uint8)
    return Weight(codes.contiguous(), scale.unsqueeze(1), 8)


def words(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """int32 words [rows, columns * bits / 32] of codes [rows, columns], the first code in the lowest bits."""
    per = 32 // bits
    shifts = torch.arange(per, device=codes.device, dtype=torch.int64) * bits
    # A sum in 64 bits: the highest code of a word would overflow 32.
    found = (codes.view(codes.shape[0], -1, per).to(torch.int64) << shifts).sum(-1)
    return (found & 0xFFFFFFFF).to(torch.int64).sub((found >> 31 & 1) << 32).to(torch.int32)


def gptq(weight: Weight) -> torch.Tensor:
    """int32 [k * bits / 32, n]: neighbors along K share a word."""
    return words(weight.codes, weight.bits).t().contiguous()


def tinygemm_bytes(weight: Weight) -> torch.Tensor:
    """uint8 [n, k / 2] for `_convert_weight_to_int4pack`: the first of two neighbors along K in the high bits."""
    return weight.codes[:, ::2] << 4 | weight.codes[:, 1::2]


def marlin_scales(weight: Weight) -> torch.Tensor:
    """The scales [groups, n] in the order of a Marlin kernel's threads."""
    scale = weight.scale.t()
    if scale.shape[0] > 1:
        order = [row + MARLIN_TILE * column for row in range(MARLIN_TILE) for column in range(MARLIN_TILE)]
    else:
        order = [2 * thread + column for thread in range(4) for column in MARLIN_PAIRS]
    return scale.reshape(-1, len(order))[:, order].reshape(scale.shape).contiguous()


def padded_rows(ends: list[int], alignment: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the rows of groups lie if each group begins at a multiple of `alignment`: the place of each row, and the
    group of each place, -1 where none is. `ends`: the end of each group."""
    places, groups, start = [], [], 0
    for group, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        room = -(-(end - begin) // alignment) * alignment
        places += [start + at for at in range(end - begin)]
        groups += [group] * (end - begin) + [-1] * (room - (end - begin))
        start += room
    return torch.tensor(places, dtype=torch.int64), torch.tensor(groups, dtype=torch.int32)
