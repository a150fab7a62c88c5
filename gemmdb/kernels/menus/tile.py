"""What is tried of `tile`, and of `narrow` and `persistent`, whose whole spaces are made from that of `tile`.

An entry of `tile.json` is a shape with the numbers of blocks per multiprocessor, the loads and the swaps that are
tried. BLOCK_K is for elements of 2 bytes (of 1 byte for int_mm). The pipeline uses the shared memory that each of that
number of blocks gets, and K is split until the multiprocessors are full once.

An entry of `narrow.json` has modes in place of loads: what the kernel does with rows beyond the end, and whether its
programs start at different places of K. One of `persistent.json` is (BLOCK_M, BLOCK_N, BLOCK_K, warps, stages, programs
per multiprocessor).
"""

from __future__ import annotations

import math
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
    shallow_depth,
    split,
    up_to,
)
from gemmdb.kernels.rules import shallow
from gemmdb.key.device import Device
from gemmdb.key.layout import ITEM_SIZES
from gemmdb.key.problem import Problem

MAX_WARPS = 32
"""The most warps of all blocks that share a multiprocessor."""
MIN_PERSISTENT_ROWS = 33
"""With fewer rows, tiles are too small for the tensor copy engine to pay off."""
_TILE_SHAPES, _NARROW_SHAPES, _PERSISTENT_SHAPES = map(read_shapes, ("tile", "narrow", "persistent"))
_DEPTHS = {"mm": (32, 64, 128, 256)}
_SHALLOW_TILES = (
    (16, 32, 1), (16, 64, 2), (16, 128, 4), (32, 32, 2), (32, 64, 4), (32, 128, 4), (64, 32, 4), (64, 64, 4),
    (64, 128, 4), (128, 32, 4), (128, 64, 4), (128, 128, 8), (128, 256, 8), (256, 128, 8),
)  # fmt: skip
"""BLOCK_M, BLOCK_N and warps of the tiles that are tried for a shallow K."""
_MAX_SHALLOW = 8
"""The most of them that are tried."""


def _usual_tile(problem: Problem, device: Device) -> Iterator[Config]:
    if shallow(problem):
        yield from shallow_tiles(problem, device)
        return
    for m, n, k, warps, *tried in up_to(_TILE_SHAPES.get(problem.op, _TILE_SHAPES["mm"]), problem.m):
        for resident, loads, swap in product(*tried):
            shape = Shape(m, n, depth_of(problem, k), warps, resident)
            yield from split(problem, device, shape, loads, swap, (dequant(problem),), idle=False)


def shallow_tiles(problem: Problem, device: Device) -> Iterator[Config]:
    """Tiles of which one step multiplies the whole K: those first whose number is nearest to that of the
    multiprocessors, as there is little to do but to store the output. Nothing is loaded ahead."""
    rows = max(16, 1 << (problem.m - 1).bit_length())

    def waves(tile: tuple[int, int, int]) -> float:
        return abs(math.log2(hardware.tile_count(problem.m, problem.n, tile[:2]) / device.units))

    fitting = [tile for tile in _SHALLOW_TILES if tile[0] <= rows]
    for m, n, warps in sorted(fitting, key=waves)[:_MAX_SHALLOW]:
        yield Config.of(
            "triton", "tile", block_m=m, block_n=n, block_k=shallow_depth(problem), group_m=hardware.BAND_ROWS,
            split_k=1, reduce="none", swap=0, load="pointer", dequant=dequant(problem), warps=warps, stages=1,
        )  # fmt: skip


def _whole_tile(problem: Problem, device: Device) -> Iterator[Config]:
    """The whole space of tiles."""
    # As the left operand, a dequantised weight does not reach the matrix unit from registers in wide enough pieces.
    swaps = PLAIN if problem.spec.dequantises else BOTH
    deep = _DEPTHS.get(problem.op, (64, 128, 256, 512))
    depths = (shallow_depth(problem),) if shallow(problem) else deep
    for m, n, k, swap, load in product(_rows(problem.m), (16, 32, 64, 128, 256), depths, swaps, PT):
        if k > max(2 * problem.k, depths[0]) or (swap and n < hardware.GROUP_ROWS) or m * n > 256 * 128:
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


def _usual_narrow(problem: Problem, device: Device) -> Iterator[Config]:
    if shallow(problem):
        return
    for m, n, k, warps, residents, modes, swaps in up_to(
        _NARROW_SHAPES.get(problem.op, _NARROW_SHAPES["mm"]), problem.m
    ):
        for resident, swap in product(residents, swaps):
            shape = Shape(m, n, depth_of(problem, k), warps, resident)
            for one in split(problem, device, shape, "pointer", swap, (dequant(problem),), idle=False):
                if one.values["reduce"] != "kernel":
                    yield from (_of_tile(one, rows, stagger) for rows, stagger in modes)


def _whole_narrow(problem: Problem, device: Device) -> Iterator[Config]:
    if problem.m > hardware.SKINNY_ROWS:
        return
    for one in _whole_tile(problem, device):
        if one.values["load"] == "pointer" and one.values["reduce"] != "kernel":
            yield from (_of_tile(one, rows, stagger) for rows, stagger in product(("wrap", "mask"), (0, 1)))


def _of_tile(one: Config, rows: str, stagger: int) -> Config:
    """The narrow config with the parameters that it shares with a config of `tile`."""
    same = {name: value for name, value in one.params if name not in ("group_m", "reduce", "load")}
    return Config.of("triton", "narrow", **same, rows=rows, stagger=stagger)


def _usual_persistent(problem: Problem, device: Device) -> Iterator[Config]:
    if problem.m < MIN_PERSISTENT_ROWS or shallow(problem):
        return
    entries = up_to(_PERSISTENT_SHAPES.get(problem.op, _PERSISTENT_SHAPES["mm"]), problem.m)
    for m, n, k, warps, stages, resident in entries:
        # The weight as left operand suits few rows. Only the first shape is tried with both.
        both = (m, n, k) == entries[0][:3] and problem.m <= 512 and not problem.spec.dequantises
        for swap in BOTH if both else PLAIN:
            yield Config.of(
                "triton", "persistent", block_m=m, block_n=n, block_k=depth_of(problem, k), group_m=hardware.BAND_ROWS,
                swap=swap, dequant=dequant(problem), resident=resident, warps=warps, stages=stages,
            )  # fmt: skip


def _whole_persistent(problem: Problem, device: Device) -> Iterator[Config]:
    for one in _whole_tile(problem, device):
        if problem.m >= MIN_PERSISTENT_ROWS and one.values["load"] == "tma" and one.values["split_k"] == 1:
            same = {name: value for name, value in one.params if name not in ("split_k", "reduce", "load")}
            for resident in (1, 2):
                # The epilogue needs some of the shared memory that `tile` can use for its pipeline alone.
                stages = max(int(one.values["stages"]) - 1, 1)
                yield Config.of("triton", "persistent", **{**same, "resident": resident, "stages": stages})


TILE = Menu(_usual_tile, _whole_tile)
NARROW = Menu(_usual_narrow, _whole_narrow)
PERSISTENT = Menu(_usual_persistent, _whole_persistent)
