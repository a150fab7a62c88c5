"""Random inputs for two pieces of compiled code, and whether their outputs agree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

SEED = 3
DIFFERENCE = 0.05
"""The largest difference between two correct outputs, relative to the largest value."""


def total_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Bytes of memory behind tensors, with the gaps in them."""
    return sum(extent(one) * one.itemsize for one in tensors)


def extent(tensor: torch.Tensor) -> int:
    """How many elements lie between the first and the last of a tensor, both included."""
    return 1 + sum(int(size - 1) * int(step) for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size)


def inputs(fakes: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Random tensors like `fakes`: sizes, strides, dtypes, devices, and the alignment of the first element. They come
    from generators of their own: torch's random states do not change."""
    made = []
    for place, fake in enumerate(fakes):
        # The first element lies as far behind a multiple of 16 bytes as in the program.
        start = fake.storage_offset() % max(16 // fake.itemsize, 1)
        random = torch.Generator(device=fake.device).manual_seed(SEED + place)
        values = _values(start + extent(fake), fake.dtype, random)
        made.append(values.as_strided(fake.shape, fake.stride(), start))
    return made


def _values(count: int, dtype: torch.dtype, random: torch.Generator) -> torch.Tensor:
    if dtype.is_floating_point:
        kind = torch.float64 if dtype is torch.float64 else torch.float32
        return torch.randn(count, generator=random, device=random.device, dtype=kind).to(dtype)
    if dtype in (torch.int8, torch.uint8):
        low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max + 1
        return torch.randint(low, high, (count,), generator=random, device=random.device, dtype=dtype)
    if dtype is torch.bool:
        return torch.randint(0, 2, (count,), generator=random, device=random.device) == 1
    # Wider integers are numbers of something, and 0 exists everywhere.
    return torch.zeros(count, dtype=dtype, device=random.device)


def differ(ours: Sequence[Any], aten: Sequence[Any]) -> bool:
    """Whether two lists of outputs differ by more than rounding explains: by more than DIFFERENCE of the largest value.
    A kernel that multiplies the wrong numbers is off by far more, and 32 bits of an integer are exact."""
    return any(_error(one, other) > DIFFERENCE for one, other in zip(ours, aten, strict=True))


def _error(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference, relative to the largest value of `other`; infinite where no rounding explains it."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return math.inf
    same = (one == other) | (one != one) & (other != other)
    if bool(same.all()) or other.dtype is torch.bool:
        return 0.0
    if other.dtype is torch.int32:
        return math.inf
    if other.dtype is not torch.float64:
        one, other = one.float(), other.float()
    largest = other.abs().nan_to_num(0.0, 0.0, 0.0).max().item()
    error = torch.where(same, 0.0, (one - other).abs()).max().item()
    return math.inf if math.isnan(error) else error / max(largest, 1e-30)
