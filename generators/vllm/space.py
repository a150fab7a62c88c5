"""Configs of vLLM's kernels to time: a few tiles for a number of rows, then small changes of the best. Pure.

The ranges cover the configs in the files that vLLM has for NVIDIA's Hopper and Blackwell GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from gemmdb.generators.vllm.layers import Layer
from gemmdb.generators.vllm_files import Tile
from gemmdb.key.ops import SCALE_BLOCK

HEIGHTS, WIDTHS, DEPTHS, GROUPS = (16, 32, 64, 128), (32, 64, 128, 256), (64, 128), (1, 16, 32, 64)
MAX_HEIGHT, MAX_DEPTH, MAX_STAGES = 256, 256, 5
NEAR_HEIGHTS, NEAR_FACTOR = 3, 4.0
"""Tiles of at most NEAR_HEIGHTS heights are tried, those within NEAR_FACTOR of the rows of a GEMM."""
MAX_SUMS, LEAST_SUMS = 4096, 128
"""Most and least elements of the output tile per warp. More than 128 sums of a thread spill registers."""
USUAL_STAGES = 4
FEW_ROWS = 32
"""Up to that many rows, wide tiles leave multiprocessors without work, deep ones pay, and tiles are not grouped."""


def tiles(layer: Layer, tokens: int, shared_bytes: int) -> list[Tile]:
    """Return tiles of a few heights near the rows of a GEMM, each with as many stages as fit, up to USUAL_STAGES.
    `shared_bytes`: the shared memory of a block."""
    rows = layer.rows(tokens)
    few = rows <= FEW_ROWS
    widths = WIDTHS[:-1] if few else WIDTHS[1:]
    depths = (SCALE_BLOCK,) if layer.fp8 else DEPTHS if few else DEPTHS[:1]
    found = []
    for height, width, depth in product(_heights(rows), widths, depths):
        warps = 8 if height * width > MAX_SUMS * 4 else 4
        options = (Tile(height, width, depth, 1 if few else 16, warps, stages) for stages in range(USUAL_STAGES, 1, -1))
        found += [one for one in options if legal(one, layer, shared_bytes)][:1]
    return found


def _heights(rows: float) -> list[int]:
    nearest = sorted(HEIGHTS, key=lambda height: (abs(math.log2(height / rows)), height))
    within = [height for height in nearest if 1 / NEAR_FACTOR <= height / rows <= NEAR_FACTOR]
    return within[:NEAR_HEIGHTS] or nearest[:1]


def near(tile: Tile, layer: Layer, shared_bytes: int) -> Iterator[Tile]:
    """Yield the legal tiles that differ from `tile` in one parameter."""
    changed = [
        *(replace(tile, stages=tile.stages + step) for step in (-1, 1)),
        *(replace(tile, warps=warps) for warps in (tile.warps // 2, tile.warps * 2)),
        *(replace(tile, block_n=width) for width in (tile.block_n // 2, tile.block_n * 2)),
        *(replace(tile, block_k=depth) for depth in (tile.block_k // 2, tile.block_k * 2)),
        *(replace(tile, block_m=height) for height in (tile.block_m // 2, tile.block_m * 2)),
        *(replace(tile, group_m=group) for group in GROUPS),
    ]
    yield from (one for one in changed if one != tile and legal(one, layer, shared_bytes))


def legal(tile: Tile, layer: Layer, shared_bytes: int) -> bool:
    """Whether vLLM's kernel computes the right result with a tile, and it probably fits. A step along K must not cross
    a block of scales: the kernel would apply the first block's to all of it."""
    if not isinstance(Tile.of(tile.values), Tile) or (layer.fp8 and SCALE_BLOCK % tile.block_k):
        return False
    if tile.block_m > MAX_HEIGHT or not min(DEPTHS) <= tile.block_k <= MAX_DEPTH or not 2 <= tile.stages <= MAX_STAGES:
        return False
    sums, item = tile.block_m * tile.block_n / tile.warps, 1 if layer.fp8 else 2
    fits = (tile.block_m + tile.block_n) * tile.block_k * item * tile.stages <= shared_bytes
    return fits and LEAST_SUMS <= sums <= MAX_SUMS
