"""What is tried of `batch` and of `scaled_blocks`.

Of `batch`: what Inductor's template cannot do, tiles that are computed transposed and slices of K. BLOCK_K and the
blocks per multiprocessor of an entry of `batch.json` are as in the menu of `tile`. An entry of `scaled_blocks.json` is
(BLOCK_M, BLOCK_N, warps, blocks per multiprocessor, swap, blocks of scales in a step; 0: one, without reading ahead).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product, zip_longest

from gemmdb.kernels import hardware
from gemmdb.kernels.config import Config
from gemmdb.kernels.menus.shared import Menu, Shape, depth_of, read_shapes, stages, up_to
from gemmdb.key.device import Device
from gemmdb.key.ops import SCALE_BLOCK
from gemmdb.key.problem import Problem

_SHAPES = read_shapes("batch")["bmm"]
_SCALED_SHAPES = read_shapes("scaled_blocks")["scaled_mm"]
_MAX_WARPS = 32


def _usual_batch(problem: Problem, device: Device) -> Iterator[Config]:
    for m, n, k, warps, resident, swap in up_to(_SHAPES, problem.m):
        yield from _configs(problem, device, Shape(m, n, depth_of(problem, k), warps, resident), swap)


def _whole_batch(problem: Problem, device: Device) -> Iterator[Config]:
    sides = product((16, 32, 64, 128, 256), (16, 32, 64, 128, 256), (32, 64, 128, 256))
    for (m, n, k), warps, resident, swap in product(sides, (2, 4, 8), (1, 2, 4), (0, 1)):
        if m < 2 * max(problem.m, 8) and warps * resident <= _MAX_WARPS and m * n <= 128 * 256:
            yield from _configs(problem, device, Shape(m, n, k, warps, resident), swap)


def _configs(problem: Problem, device: Device, shape: Shape, swap: int) -> Iterator[Config]:
    """The configs of a shape, cut to the matrices: without a split of K if it is swapped, and with the splits that fill
    the multiprocessors once."""
    sides = ((shape.m, problem.m), (shape.n, problem.n), (shape.k, problem.k))
    m, n, k = (min(side, max(16, 1 << (size - 1).bit_length())) for side, size in sides)
    # Swapped tiles fill the matrix unit better where they have enough columns. Fp32 in full does not use it.
    if problem.constant or (swap and (n < hardware.GROUP_ROWS or problem.a.dtype == "fp32")):
        return  # The code of a constant weight cannot be generated without the weight.
    cut = Shape(m, n, k, shape.warps, shape.resident)
    steps = -(-problem.k // k)
    ahead = min(stages(problem, device, cut, "pointer", swap), max(steps, 2))
    tiles = problem.batch * hardware.tile_count(problem.m, problem.n, (m, n))
    if ahead < 2:
        return
    for slices in (*([1] if swap else []), *_splits(tiles, device.units * shape.resident, steps)):
        yield _config("batch", cut, slices, swap, ahead)


def _splits(tiles: int, programs: int, steps: int) -> list[int]:
    """The splits of K that fill the multiprocessors once; where K is too short for that, the largest power of two that
    leaves two steps for each slice."""
    if found := hardware.splits(tiles, programs, steps):
        return found
    most = 1 << (steps // 2).bit_length() >> 1
    return [most] if 1 < most < programs // tiles else []


def _usual_scaled(problem: Problem, device: Device) -> Iterator[Config]:
    """The first config of each entry, then the second ones: live tuning tries only a few."""
    found = [
        _scaled_configs(problem, device, _scaled_shape(m, n, blocks, warps, resident), swap, blocks)
        for m, n, warps, resident, swap, blocks in up_to(_SCALED_SHAPES, problem.m)
    ]
    yield from (config for turn in zip_longest(*found) for config in turn if config is not None)


def _whole_scaled(problem: Problem, device: Device) -> Iterator[Config]:
    sides, how = (16, 32, 64, 128), ((2, 4, 8), (1, 2, 4), (0, 1), (0, 1, 2, 4))
    for m, n, warps, resident, swap, blocks in product(sides, sides, *how):
        if m < 2 * max(problem.m, 8):
            yield from _scaled_configs(problem, device, _scaled_shape(m, n, blocks, warps, resident), swap, blocks)


def _scaled_shape(m: int, n: int, blocks: int, warps: int, resident: int) -> Shape:
    """A step along K is so many blocks of scales."""
    return Shape(m, n, SCALE_BLOCK * max(blocks, 1), warps, resident)


def _scaled_configs(problem: Problem, device: Device, shape: Shape, swap: int, blocks: int) -> Iterator[Config]:
    """The configs of a shape without a split of K, if that leaves less than half of the multiprocessors without work,
    and with the splits that fill the multiprocessors once. None for other kinds of scales."""
    ahead = stages(problem, device, shape, "pointer", swap) if problem.scales == "block" else 0
    if ahead < 2 or problem.constant:
        return
    tiles, steps = hardware.tile_count(problem.m, problem.n, (shape.m, shape.n)), -(-problem.k // shape.k)
    splits = _splits(tiles, device.units * shape.resident, steps)
    ahead, depth = min(ahead, max(steps, 2)), replace(shape, k=SCALE_BLOCK)
    whole = [1] if not splits or 2 * tiles >= device.units else []
    for slices in [*splits, *whole] if blocks else [*whole, *splits]:
        config = _config("scaled_blocks", depth, slices, swap, ahead)
        yield config if not blocks else Config.of("triton", "scaled_blocks", **config.values, blocks=blocks)


def _config(kernel: str, shape: Shape, split: int, swap: int, ahead: int) -> Config:
    return Config.of(
        "triton", kernel, block_m=shape.m, block_n=shape.n, block_k=shape.k, group_m=hardware.BAND_ROWS, split_k=split,
        swap=swap, warps=shape.warps, stages=ahead,
    )  # fmt: skip


BATCH = Menu(_usual_batch, _whole_batch)
SCALED_BLOCKS = Menu(_usual_scaled, _whole_scaled)
