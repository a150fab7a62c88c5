"""The numbers of a packed int4 weight, and the weight that a program makes of them, as torch computes them."""

from __future__ import annotations

import torch

from gemmdb.key.int4 import Int4Format

FROM = 8
"""The number that stands for a weight of zero without zero points."""


def numbers(packed: torch.Tensor, own: Int4Format) -> torch.Tensor:
    """The numbers from 0 to 15 of a packed weight as uint8 [n, k]."""
    if not own.inner:
        first, second = packed & 15, packed >> 4
        order = (second, first) if own.packing == "high-first" else (first, second)
        return torch.stack(order, dim=-1).flatten(1)
    tiles, steps = packed.shape[:2]
    # A word of lane 4 r + c has row r of eight. Its bits 4 i and 16 + 4 i are columns 2 c and 2 c + 1 of eight columns.
    words = packed.reshape(tiles, steps, 8, 4, own.inner // 2)
    shifts = 4 * torch.arange(4, device=packed.device)
    parts = [(words.unsqueeze(-1) >> (shifts + half)).bitwise_and(15).to(torch.uint8) for half in (0, 16)]
    found = torch.stack(parts, dim=-1)  # [n / 8, k / step, row, column pair, word, eight columns, half]
    return found.permute(0, 2, 1, 4, 5, 3, 6).reshape(tiles * 8, steps * 16 * own.inner)


def dequantised(
    packed: torch.Tensor, scale: torch.Tensor, zeros: torch.Tensor | None, own: Int4Format, dtype: torch.dtype
) -> torch.Tensor:
    """The weight [n, k] of `dtype`, computed in it as a program does. `scale`, `zeros`: as `gemmdb.key.int4` says."""
    found = numbers(packed, own)
    weight = found.to(dtype).view(found.shape[0], -1, own.size)
    if own.inner:
        by, added = (scale[..., which].t().to(dtype).unsqueeze(-1) for which in (0, 1))
        return ((weight - FROM) * by + added).view(found.shape)
    start = FROM if zeros is None else zeros.to(dtype).unsqueeze(-1)
    return ((weight - start) * scale.to(dtype).unsqueeze(-1)).view(found.shape)
