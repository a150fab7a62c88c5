"""Two pieces of compiled code on the same random inputs: whether they agree, and how long each takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gemmdb.inductor.benchmark.subgraph import extent
from gemmdb.table.measurement import NOISY, Protocol
from gemmdb.table.stats import times

SEED = 3
FEWEST = 5
"""The fewest rounds of a trial."""
DIFFERENCE = 0.05
"""The largest difference between two right outputs, relative to the largest value."""
CLEAR = 1.1
"""If every sample of one is this many times every sample of the other, and neither varies much, no more rounds are
needed."""


@dataclass(frozen=True)
class Trial:
    """Samples in microseconds of one call of `aten` and of `ours`, taken in turn. `differs`: the outputs are not the
    same up to rounding."""

    aten: Sequence[float]
    ours: Sequence[float]
    protocol: Protocol
    differs: bool = False


def clear(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether it is certain which of the two is faster, so that more samples would change nothing.

    Few samples of which one was disturbed make a noisy time, which would say nothing. Among more, it does not count.
    """
    if min(len(one), len(other)) < FEWEST or noisy(one, other):
        return False
    return min(one) > CLEAR * max(other) or min(other) > CLEAR * max(one)


def noisy(aten: Sequence[float], ours: Sequence[float]) -> bool:
    """Whether samples vary too much to compare the two."""
    return max(times(aten, aten).spread, times(ours, aten).spread) > NOISY


def inputs(fakes: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Random tensors like `fakes`: sizes, strides, dtypes, devices, and the alignment of the first element. They come
    from generators of their own: torch's random states do not change."""
    return [_filled(fake, SEED + place) for place, fake in enumerate(fakes)]


def _filled(fake: torch.Tensor, seed: int) -> torch.Tensor:
    # The first element lies as far behind a multiple of 16 bytes as in the program.
    start = fake.storage_offset() % max(16 // fake.itemsize, 1)
    count = start + extent(fake)
    random = torch.Generator(device=fake.device).manual_seed(seed)
    return _values(count, fake.dtype, random).as_strided(fake.shape, fake.stride(), start)


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
