"""Configs of vLLM's kernels to time: a few tiles for a number of rows, then small changes of the best. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from gemmdb.generators.vllm.layers import Layer
from gemmdb.generators.vllm_files import Tile
from gemmdb.key.ops import SCALE_BLOCK

HEIGHTS, WIDTHS, DEPTHS = (16, 32, 64, 128), (32, 64, 128, 256), (64, 128, 256)
GROUPS = (1, 16, 64)
MAX_SUMS, LEAST_SUMS = 4096, 128
"""Most and least elements of the output tile per warp. More than 128 sums of a thread spill registers."""
USUAL_STAGES = 4
FEW_ROWS = 32
"""Up to that many rows, wide tiles leave multiprocessors without work, and tiles are not grouped."""


def tiles(layer: Layer, tokens: int, shared_bytes: int) -> list[Tile]:
    """Return tiles of two heights near the rows of a GEMM, each with as many stages as fit, up to USUAL_STAGES.
    `shared_bytes`: the shared memory of a block."""
    rows = layer.rows(tokens)
    heights = sorted(HEIGHTS, key=lambda height: abs(math.log2(height / rows)))[:2]
    widths = WIDTHS[:-1] if rows <= FEW_ROWS else WIDTHS[1:]
    group = 1 if rows <= FEW_ROWS else 16
    found = []
    for height, width, depth in product(heights, widths, DEPTHS):
        warps = 8 if height * width > MAX_SUMS * 4 else 4
        options = (Tile(height, width, depth, group, warps, stages) for stages in range(USUAL_STAGES, 1, -1))
        found += [one for one in options if legal(one, layer, shared_bytes)][:1]
    return found


def near(tile: Tile, layer: Layer, shared_bytes: int) -> Iterator[Tile]:
    """Yield the legal tiles that differ from `tile` in one parameter other than height and width."""
    changed = [
        *(replace(tile, stages=tile.stages + step) for step in (-1, 1)),
        *(replace(tile, warps=warps) for warps in (tile.warps // 2, tile.warps * 2)),
        *(replace(tile, block_k=depth) for depth in (tile.block_k // 2, tile.block_k * 2)),
        *(replace(tile, group_m=group) for group in GROUPS),
    ]
    yield from (one for one in changed if one != tile and legal(one, layer, shared_bytes))


def legal(tile: Tile, layer: Layer, shared_bytes: int) -> bool:
    """Whether vLLM's kernel computes the right result with a tile, and it probably fits. A step along K must not cross
    a block of scales: the kernel would apply the first block's to all of it."""
    item = 1 if layer.fp8 else 2
    if not isinstance(Tile.of(tile.values), Tile) or (layer.fp8 and SCALE_BLOCK % tile.block_k):
        return False
    sums = tile.block_m * tile.block_n / tile.warps
    fits = (tile.block_m + tile.block_n) * tile.block_k * item * tile.stages <= shared_bytes
    return fits and LEAST_SUMS <= sums <= MAX_SUMS
