"""What Inductor could make of a product besides our kernels: a handful of its own templates' configs, the first that
its heuristics propose for a size class, and padding where rows are misaligned."""

from __future__ import annotations

from collections.abc import Iterator

from gemmdb.config import Config
from gemmdb.device import Device
from gemmdb.layout import ITEM_SIZES, VECTOR_BYTES
from gemmdb.legality import illegal
from gemmdb.legality_inductor import TMA, misaligned
from gemmdb.problem import Problem

ALIGNED_ROWS = 64
"""Below that, and where rows are aligned, our own kernels are tried in these shapes and narrower ones."""
ALIGNED_TILES, ALIGNED_PERSISTENT = 2, 1
"""How many of each list are tried where rows are aligned: there `tile` and `persistent` do what these templates do, and
a config costs half a second of compiling per problem. With misaligned rows, literal sizes make the difference."""
WIDE_ROWS = 256
"""From there on a padded copy of the weight may be made to larger multiples, too."""

Tile = tuple[int, int, int, int, int]
"""Rows, columns and depth of a tile of 2-byte elements, stages, warps."""
TILES: dict[int, tuple[Tile, ...]] = {
    1: ((16, 32, 128, 4, 4), (32, 64, 64, 4, 4)),
    64: ((64, 32, 128, 5, 4), (64, 64, 128, 5, 4), (64, 128, 64, 3, 4)),
    96: ((128, 128, 64, 3, 4), (64, 64, 128, 5, 4), (64, 128, 64, 3, 4), (128, 64, 32, 4, 8)),
    256: ((128, 128, 64, 3, 4), (128, 128, 64, 5, 8), (64, 128, 64, 3, 4)),
}
"""Tiles of the plain template by the least M that they are for, the most promising first."""
PERSISTENT: dict[int, tuple[Tile, ...]] = {
    1: (),
    64: (),
    96: ((128, 128, 64, 4, 8), (128, 128, 128, 3, 8)),
    256: ((128, 256, 64, 3, 8), (128, 128, 64, 4, 8), (256, 128, 64, 4, 8), (128, 128, 128, 3, 8)),
}
INTEGER: tuple[Tile, ...] = (
    (128, 256, 128, 3, 8), (256, 128, 128, 3, 8), (64, 64, 64, 3, 8), (64, 128, 32, 4, 8), (128, 128, 32, 2, 8),
)  # fmt: skip
"""Tiles of int8 elements."""


def configs(problem: Problem, device: Device) -> list[Config]:
    """The legal configs for a problem, in a fixed order; none where the weight is a constant of the graph, since then
    the code cannot be generated apart from it."""
    if problem.constant:
        return []
    found = dict.fromkeys((*_padded(problem), *_templates(problem)))
    return [config for config in found if not illegal(config, problem, device)]


def _padded(problem: Problem) -> Iterator[Config]:
    if problem.op == "mixed_mm" or not misaligned(problem):
        return
    yield Config.of("aten", "padded", multiple=max(VECTOR_BYTES // ITEM_SIZES[problem.a.dtype], 8))
    if problem.m >= WIDE_ROWS:
        yield Config.of("aten", "padded", multiple=64)


def _templates(problem: Problem) -> Iterator[Config]:
    aligned = not misaligned(problem)
    if problem.op == "mixed_mm" or (aligned and problem.m < ALIGNED_ROWS):
        return
    if problem.op == "int_mm":
        yield from (_config("inductor_mm", tile) for tile in INTEGER[: ALIGNED_TILES if aligned else None])
        return
    row_class = max(least for least in TILES if least <= problem.m)
    # A tile takes as many bytes of fp32 as of bf16.
    shrink = max(ITEM_SIZES[problem.a.dtype] // 2, 1)
    lists = ((TMA, PERSISTENT, ALIGNED_PERSISTENT), ("inductor_mm", TILES, ALIGNED_TILES))
    for kernel, tiles, few in lists:
        for m, n, k, stages, warps in tiles[row_class][: few if aligned else None]:
            yield _config(kernel, (m, n, k // shrink, stages, warps))


def _config(kernel: str, tile: Tile) -> Config:
    m, n, k, stages, warps = tile
    return Config.of("triton", kernel, block_m=m, block_n=n, block_k=k, group_m=8, stages=stages, warps=warps)
