"""What is tried of `tile`.

An entry of `tile.json` is a shape with the numbers of blocks per multiprocessor, the loads and the swaps that are
tried. BLOCK_K is for elements of 2 bytes (of 1 byte for int_mm). The pipeline uses the shared memory that each of that
number of blocks gets, and K is split until the multiprocessors are full once.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from gemmdb.kernels import hardware
from gemmdb.kernels.config import Config
from gemmdb.kernels.menus.shared import (
    BOTH,
    PLAIN,
    PT,
    Menu,
    Shape,
    depth_of,
    dequant,
    dequants,
    read_shapes,
    split,
    up_to,
)
from gemmdb.key.device import Device
from gemmdb.key.layout import ITEM_SIZES
from gemmdb.key.problem import Problem

MAX_WARPS = 32
"""The most warps of all blocks that share a multiprocessor."""


_MENUS = read_shapes("tile")
_DEPTHS = {"mm": (32, 64, 128, 256)}


def _usual(problem: Problem, device: Device) -> Iterator[Config]:
    for m, n, k, warps, *tried in up_to(_MENUS.get(problem.op, _MENUS["mm"]), problem.m):
        for resident, loads, swap in product(*tried):
            shape = Shape(m, n, depth_of(problem, k), warps, resident)
            yield from split(problem, device, shape, loads, swap, (dequant(problem),), idle=False)


def whole(problem: Problem, device: Device) -> Iterator[Config]:
    """The whole space of tiles. The spaces of `narrow` and `persistent` are made from it."""
    # As the left operand, a dequantised weight does not reach the matrix unit from registers in wide enough pieces.
    swaps = PLAIN if problem.spec.dequantises else BOTH
    depths = _DEPTHS.get(problem.op, (64, 128, 256, 512))
    for m, n, k, swap, load in product(_rows(problem.m), (16, 32, 64, 128, 256), depths, swaps, PT):
        if k > 2 * problem.k or (swap and n < hardware.GROUP_ROWS) or m * n > 256 * 128:
            continue
        for warps, resident in product(_warps(problem, (m, n, k), swap), (1, 2, 4, 8)):
            if warps * resident <= MAX_WARPS:
                yield from split(problem, device, Shape(m, n, k, warps, resident), load, swap, dequants(problem))


def _rows(m: int) -> list[int]:
    """Tile heights: the power of two that holds M, the one below it, and what suits a large M."""
    least = min(max(16, 1 << (m - 1).bit_length()), 256)
    return [height for height in (least, least // 2, least // 4) if height >= (64 if m > 128 else 16)]


def _warps(problem: Problem, block: tuple[int, int, int], swap: int) -> list[int]:
    m, n, k = block
    left = n if swap else m
    if left >= hardware.GROUP_ROWS and (not problem.spec.dequantises or m >= 128):
        one = hardware.GROUP_WARPS
        return [one] if left < 2 * hardware.GROUP_ROWS else [one, 2 * one]
    # The condition limits the bytes of weight that a thread loads to registers in one step.
    size = ITEM_SIZES[problem.b.dtype]
    return [warps for warps in (1, 2, 4, 8) if 32 <= n * k * size // (warps * 32) <= 512 and n // warps >= 8]


MENU = Menu(_usual, whole)
