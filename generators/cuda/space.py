"""Candidates on an NVIDIA GPU: ATen, and our Triton kernels over tiles, splits of K, pipelines and ways to load."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from itertools import product

from gemmdb.config import ATEN, Config
from gemmdb.device import Device
from gemmdb.generators.cuda.legality import SHARED_BYTES, illegal
from gemmdb.generators.effort import Effort
from gemmdb.generators.interfaces import Candidate
from gemmdb.layout import ITEM_SIZES
from gemmdb.problem import Problem

LIMITS = (12, 80, 400)
"""Configs per problem besides ATen, by the breadth of the effort."""


class CudaSpace:
    """The space of a GPU; `breadth` says how many of the ordered configs are tried."""

    def candidates(self, problem: Problem, device: Device, effort: Effort) -> Sequence[Candidate]:
        """ATen, then the legal configs in the order of `ranked`."""
        return [Candidate(ATEN), *map(Candidate, ranked(problem, device)[: LIMITS[effort.breadth]])]


def ranked(problem: Problem, device: Device) -> list[Config]:
    """All legal configs of a problem, in a fixed order."""
    configs = dict.fromkeys((*_gemvs(problem), *_tiles(problem, device)))
    legal = [config for config in configs if not illegal(config, problem, device)]
    return sorted(legal, key=lambda config: hashlib.sha256(config.text.encode()).digest())


def _gemvs(problem: Problem) -> Iterator[Config]:
    # With more rows than two the matrix unit does the same work for less.
    if problem.m > 2 or problem.op == "int_mm":
        return
    ways = ("cast", "bits") if problem.op == "mixed_mm" else ("cast",)
    for n, k, way, warps, stages in product((2, 4, 8, 16), (128, 256, 512, 1024, 2048), ways, (1, 2, 4), (1, 3, 5, 8)):
        if 16 <= n * k * problem.m // (warps * 32) <= 64 and k <= problem.k:
            yield Config.of("triton", "gemv", block_n=n, block_k=k, dequant=way, warps=warps, unroll=1, stages=stages)


def _tiles(problem: Problem, device: Device) -> Iterator[Config]:
    # A dequantised weight does not reach the matrix unit from registers in wide enough pieces when it comes first.
    swaps = (0,) if problem.op == "mixed_mm" else (0, 1)
    deep = (64, 128, 256, 512) if problem.op != "mm" else (32, 64, 128, 256)
    ways = ("cast", "bits") if problem.op == "mixed_mm" else ("cast",)
    for m, n, k, swap, load in product(_rows(problem.m), (16, 32, 64, 128, 256), deep, swaps, ("pointer", "tma")):
        if k > 2 * problem.k or (swap and n < 64) or m * n > 256 * 128:
            continue
        for warps, resident in product(_warps(problem, (m, n, k), swap), (1, 2, 4, 8)):
            stages = _stages(problem, device, (m, n, k), resident)
            if stages < 2 or warps * resident > 32:
                continue
            for way, (split, reduce) in product(ways, _splits(problem, device, (m, n, k), resident)):
                yield Config.of(
                    "triton", "tile", block_m=m, block_n=n, block_k=k, group_m=8, split_k=split, reduce=reduce,
                    swap=swap, load=load, dequant=way, warps=warps, stages=stages,
                )  # fmt: skip


def _rows(m: int) -> list[int]:
    """Tile heights: the power of two that holds M, the one below it, and what suits a large M."""
    whole = min(max(16, 1 << (m - 1).bit_length()), 256)
    return [height for height in (whole, whole // 2, whole // 4) if height >= (64 if m > 128 else 16)]


def _warps(problem: Problem, block: tuple[int, int, int], swap: int) -> list[int]:
    m, n, k = block
    left = n if swap else m
    if left >= 64 and (problem.op != "mixed_mm" or m >= 128):
        # A warp group of the matrix unit is 4 warps, for 64 rows of the left operand.
        return [4] if left < 128 else [4, 8]
    # Bytes of weight that a thread takes to registers in one step.
    size = ITEM_SIZES[problem.b.dtype]
    return [warps for warps in (1, 2, 4, 8) if 32 <= n * k * size // (warps * 32) <= 512 and n // warps >= 8]


def _stages(problem: Problem, device: Device, block: tuple[int, int, int], resident: int) -> int:
    """One more than the buffers that fit when `resident` blocks share a multiprocessor, at most 8; 0 if none does."""
    m, n, k = block
    stage = m * k * ITEM_SIZES[problem.a.dtype] + n * k * ITEM_SIZES[problem.b.dtype]
    buffers = int(device.figures.get("smem_bytes", SHARED_BYTES)) // resident // (stage + 512)
    return min(8, buffers + 1) if buffers else 0


def _splits(problem: Problem, device: Device, block: tuple[int, int, int], resident: int) -> Iterator[tuple[int, str]]:
    """Ways to split K: none, and those that fill the multiprocessors once."""
    m, n, k = block
    tiles, steps = math.ceil(problem.m / m) * math.ceil(problem.n / n), math.ceil(problem.k / k)
    slots = device.units * resident
    yield 1, "none"
    for split in sorted({slots // tiles, 1 << (slots // tiles).bit_length() >> 1} - {0, 1}):
        if split <= min(steps // 2, 32):
            yield split, "fixup"
            yield split, "kernel"
