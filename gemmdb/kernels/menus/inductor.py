"""Inductor's own candidates besides our kernels: a few configs of its templates, the first that its heuristics list for
a size class, padding if rows are misaligned, and the multiply-and-sum for one row or column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gemmdb.kernels.aten import PADDED, misaligned
from gemmdb.kernels.config import Config
from gemmdb.kernels.hardware import BAND_ROWS, SKINNY_ROWS, tile_count
from gemmdb.kernels.inductor import SUM
from gemmdb.key.device import Device
from gemmdb.key.layout import ITEM_SIZES, VECTOR_BYTES
from gemmdb.key.problem import Problem

ALIGNED_TILES, ALIGNED_PERSISTENT = 2, 1
"""How many of each list are tried if rows are aligned. Then `tile` and `persistent` do the same work, and each config
costs half a second of compiling per problem. With misaligned rows, Inductor's kernels differ by their literal sizes."""
WIDE_ROWS = 256
"""From this many rows on, padding to larger multiples is tried too."""

TMA, SCALED_TMA, GROUPED_TMA = "inductor_persistent_tma", "inductor_scaled_tma", "inductor_grouped"
Tile = tuple[int, int, int, int, int]
"""Rows, columns and depth of a tile of 2-byte elements, stages, warps."""
TILES: dict[int, tuple[Tile, ...]] = {
    1: ((16, 32, 128, 4, 4), (32, 64, 64, 4, 4)),
    64: ((64, 32, 128, 5, 4), (64, 64, 128, 5, 4), (64, 128, 64, 3, 4)),
    96: ((128, 128, 64, 3, 4), (64, 64, 128, 5, 4), (64, 128, 64, 3, 4), (128, 64, 32, 4, 8)),
    256: ((128, 128, 64, 3, 4), (128, 128, 64, 5, 8), (64, 128, 64, 3, 4)),
}
"""Tiles of the plain template by the smallest M they apply to, the most promising first."""
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
BATCHED: dict[int, tuple[Tile, ...]] = {
    1: (
        (16, 64, 128, 4, 4), (16, 128, 64, 5, 4), (16, 32, 128, 5, 2), (16, 64, 64, 5, 2), (16, 128, 128, 3, 4),
        (16, 256, 64, 4, 8), (16, 32, 256, 3, 4),
    ),
    17: (
        (32, 64, 128, 4, 4), (32, 128, 64, 4, 4), (32, 64, 64, 5, 4), (32, 128, 128, 3, 8), (32, 32, 128, 5, 4),
        (16, 128, 64, 4, 4),
    ),
    33: (
        (64, 64, 64, 4, 4), (64, 128, 64, 4, 4), (64, 64, 128, 3, 4), (64, 32, 128, 5, 4), (64, 256, 64, 3, 4),
        (32, 128, 64, 4, 4), (64, 128, 128, 3, 8),
    ),
    65: (
        (128, 128, 64, 3, 8), (128, 128, 64, 4, 4), (64, 128, 64, 4, 4), (128, 64, 64, 4, 4), (128, 256, 64, 3, 8),
        (64, 64, 64, 4, 4), (128, 128, 32, 4, 8), (256, 128, 64, 3, 8),
    ),
}  # fmt: skip
"""Tiles of the template of batches, by the smallest M they apply to. Each is cut to the size of the matrices."""
SMALL_ROWS = 32
SMALL_BATCHED: tuple[Tile, ...] = (
    (32, 32, 128, 2, 4), (32, 64, 32, 5, 8), (64, 32, 32, 5, 8), (64, 32, 128, 5, 4), (32, 32, 64, 4, 4),
    (64, 64, 32, 2, 4),
)  # fmt: skip
"""What is tried as well for more than SMALL_ROWS rows where the first of those tiles leaves multiprocessors without
work: max-autotune, which tries such tiles, was up to 1.2 times as fast there on an H200."""

SCALED: dict[int, tuple[Tile, ...]] = {
    1: ((16, 128, 256, 3, 4), (16, 256, 128, 4, 8), (16, 64, 128, 5, 2)),
    17: ((32, 128, 128, 4, 4), (32, 64, 256, 4, 4), (32, 32, 256, 5, 4)),
    33: ((64, 32, 256, 5, 4), (64, 128, 128, 4, 4), (64, 64, 256, 3, 4)),
    65: ((128, 256, 128, 3, 8), (128, 128, 128, 3, 8), (64, 128, 128, 4, 4)),
}  # fmt: skip
"""Tiles of fp8 elements of the plain template with scales, by the smallest M they apply to. They are the better half of
the tiles that were tried on 36 problems on an H200. None of these had 17 to 32 rows, so tiles similar to the others are
used there. For many rows, one of SCALED_PERSISTENT was always faster; the tiles here serve problems with a bias, which
SCALED_PERSISTENT does not take."""
SCALED_PERSISTENT: dict[int, tuple[Tile, ...]] = {
    1: (),
    17: (),
    33: ((64, 128, 256, 4, 4), (64, 256, 128, 4, 4)),
    65: (
        (128, 128, 128, 4, 8), (128, 256, 128, 3, 8), (128, 128, 128, 4, 4), (64, 128, 256, 4, 4),
        (128, 128, 128, 5, 8), (64, 256, 128, 4, 4),
    ),
}  # fmt: skip
"""The same for the template with tensor maps: all of Inductor's list."""

GROUPED: dict[int, tuple[Tile, ...]] = {
    1: ((16, 64, 256, 4, 4), (16, 128, 128, 4, 4), (16, 64, 128, 4, 4)),
    17: ((64, 128, 64, 4, 4), (32, 128, 128, 4, 4), (64, 128, 128, 3, 4)),
    65: ((128, 256, 64, 3, 8), (128, 128, 64, 4, 8), (64, 256, 64, 4, 8)),
}  # fmt: skip
"""Tiles of the template of groups, by the mean number of rows of the groups that have some. Where the groups divide K,
those for many rows. Tiles of fp8 are twice as deep, as far as the template takes them."""
DEEPEST = 256
"""The deepest tile of Inductor's own lists."""


def configs(problem: Problem, device: Device) -> list[Config]:
    """The legal configs for a problem, in a fixed order. None if the weight is a constant of the graph, since the code
    then cannot be generated without the weight."""
    if problem.constant:
        return []
    found = dict.fromkeys((*_padded(problem), *_templates(problem, device), *_sum(problem)))
    return [config for config in found if not config.rejection(problem, device)]


def _padded(problem: Problem) -> Iterator[Config]:
    if problem.op not in PADDED.ops or not misaligned(problem):
        return
    yield Config.of("aten", "padded", multiple=max(VECTOR_BYTES // ITEM_SIZES[problem.a.dtype], 8))
    if problem.m >= WIDE_ROWS:
        yield Config.of("aten", "padded", multiple=64)


def _templates(problem: Problem, device: Device) -> Iterator[Config]:
    if problem.spec.batched:
        yield from (_config("inductor_bmm", tile) for tile in _batched(problem, device))
        return
    if problem.spec.grouped:
        yield from (_config(GROUPED_TMA, tile) for tile in _grouped(problem))
        return
    if problem.scaled:
        row_class = max((least for least in SCALED if least <= problem.m), default=1)
        yield from (_config("inductor_mm", tile) for tile in SCALED[row_class])
        yield from (_config(SCALED_TMA, tile) for tile in SCALED_PERSISTENT[row_class])
        return
    aligned = not misaligned(problem)
    # For aligned, skinny products, our own kernels have these shapes and narrower ones.
    if problem.spec.dequantises or (aligned and problem.m < SKINNY_ROWS):
        return
    if problem.spec.integer:
        yield from (_config("inductor_mm", tile) for tile in INTEGER[: ALIGNED_TILES if aligned else None])
        return
    row_class = max(least for least in TILES if least <= problem.m)
    # A tile of fp32 takes as many bytes as one of bf16.
    shrink = max(ITEM_SIZES[problem.a.dtype] // 2, 1)
    lists = ((TMA, PERSISTENT, ALIGNED_PERSISTENT), ("inductor_mm", TILES, ALIGNED_TILES))
    for kernel, tiles, few in lists:
        for m, n, k, stages, warps in tiles[row_class][: few if aligned else None]:
            yield _config(kernel, (m, n, k // shrink, stages, warps))


def _sum(problem: Problem) -> Iterator[Config]:
    if problem.op in SUM.ops and 1 in (problem.m, problem.n):
        yield Config.of(SUM.backend, SUM.name)


def _grouped(problem: Problem) -> Sequence[Tile]:
    """The tiles of the template of groups."""
    rows = problem.m if problem.ragged == "k" else -(-problem.m // max(problem.active_groups, 1))
    tiles = GROUPED[max((least for least in GROUPED if least <= rows), default=1)]
    deeper = 2 // ITEM_SIZES[problem.a.dtype]
    return [(m, n, min(k * deeper, DEEPEST), stages, warps) for m, n, k, stages, warps in tiles]


def _batched(problem: Problem, device: Device) -> Iterator[Tile]:
    """The tiles of the template of batches, without repeats: each side at most the power of two that holds the matrix,
    which is often as small as an attention head."""
    row_class = max((least for least in BATCHED if least <= problem.m), default=1)
    shrink = max(ITEM_SIZES[problem.a.dtype] // 2, 1)
    tiles, found = BATCHED[row_class], dict[Tile, None]()
    few = problem.batch * tile_count(problem.m, problem.n, tiles[0][:2]) < device.units
    for m, n, k, stages, warps in (*tiles, *(SMALL_BATCHED if few and problem.m > SMALL_ROWS else ())):
        sides = zip((m, n, max(k // shrink, 16)), (problem.m, problem.n, problem.k), strict=True)
        rows, columns, depth = (min(side, max(16, 1 << (size - 1).bit_length())) for side, size in sides)
        # If one step multiplies the whole K, there is nothing to load ahead.
        found[rows, columns, depth, min(stages, max(-(-problem.k // depth), 2)), warps] = None
    yield from found


def _config(kernel: str, tile: Tile) -> Config:
    m, n, k, stages, warps = tile
    return Config.of("triton", kernel, block_m=m, block_n=n, block_k=k, group_m=BAND_ROWS, stages=stages, warps=warps)
