"""Random inputs for two compiled functions, and a comparison of their outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from gemmdb.key.int4 import EXPONENT_BIAS

SEED = 3
DIFFERENCE = 0.05
"""Maximum difference between two correct outputs, relative to the largest value."""

VALUES, PACKED, EXPONENTS = "values", "packed", "exponents"
"""What a tensor may hold: values of its dtype, packed numbers of four or eight bits, or the powers of two of MXFP4."""
_LIMITS = {
    (PACKED, torch.int32): (-(2**31), 2**31),
    (EXPONENTS, torch.uint8): (EXPONENT_BIAS - 4, EXPONENT_BIAS + 5),
}


def total_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Return the bytes of memory that tensors span, including gaps."""
    return sum(extent(one) * one.itemsize for one in tensors)


def extent(tensor: torch.Tensor) -> int:
    """Return the number of elements from a tensor's first to its last in memory, inclusive."""
    return 1 + sum(int(size - 1) * int(step) for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size)


def inputs(fakes: Sequence[torch.Tensor], kinds: Sequence[str] = ()) -> list[torch.Tensor]:
    """Return random tensors like `fakes`: sizes, strides, dtypes, devices, and the alignment of the first element. Uses
    separate generators, so torch's random states do not change. `kinds`: what each of them holds, by default only
    values."""
    made = []
    for place, fake in enumerate(fakes):
        # The first element has the same offset from 16-byte alignment as in the program.
        start = fake.storage_offset() % max(16 // fake.itemsize, 1)
        random = torch.Generator(device=fake.device).manual_seed(SEED + place)
        kind = kinds[place] if kinds else VALUES
        values = _values(start + extent(fake), fake.dtype, random, kind)
        made.append(values.as_strided(fake.shape, fake.stride(), start))
    return made


def _values(count: int, dtype: torch.dtype, random: torch.Generator, kind: str) -> torch.Tensor:
    if limits := _LIMITS.get((kind, dtype)):
        return torch.randint(*limits, (count,), generator=random, device=random.device, dtype=dtype)
    if dtype.is_floating_point:
        wide = torch.float64 if dtype is torch.float64 else torch.float32
        return torch.randn(count, generator=random, device=random.device, dtype=wide).to(dtype)
    if dtype in (torch.int8, torch.uint8):
        low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max + 1
        return torch.randint(low, high, (count,), generator=random, device=random.device, dtype=dtype)
    if dtype is torch.bool:
        return torch.randint(0, 2, (count,), generator=random, device=random.device) == 1
    # Wider integers are counts or indices, for which 0 is always valid.
    return torch.zeros(count, dtype=dtype, device=random.device)


def differ(ours: Sequence[Any], aten: Sequence[Any]) -> bool:
    """Return whether two lists of outputs differ by more than rounding error: by more than DIFFERENCE of the largest
    value. A wrong kernel is off by far more, and 32-bit integers are exact."""
    return any(_error(one, other) > DIFFERENCE for one, other in zip(ours, aten, strict=True))


def _error(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the largest difference relative to the largest value of `other`; infinite if rounding cannot explain
    it."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return math.inf
    if other.dtype.is_floating_point and math.isfinite(error := _finite_error(one, other)):
        return error
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


def _finite_error(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the largest difference relative to the largest value of `other`; not finite if some value is not. Few
    kinds of kernels: in a new process, the first launch of each takes the GPU's driver milliseconds."""
    if other.dtype is not torch.float64:
        one, other = one.float(), other.float()
    if not other.numel():
        return 0.0
    error, largest = (float(values.abs().amax()) for values in (one - other, other))
    return error / max(largest, 1e-30) if math.isfinite(largest) else math.nan
