"""Inductor's own candidates besides our kernels: a few configs of its templates, the first that its heuristics list for
a size class, padding if rows are misaligned, and the multiply-and-sum for one row or column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gemmdb.kernels.aten import PADDED, misaligned
from gemmdb.kernels.config import Config
from gemmdb.kernels.default_mode import padded_form
from gemmdb.kernels.hardware import BAND_ROWS, SKINNY_ROWS, tile_count
from gemmdb.kernels.inductor import SUM
from gemmdb.kernels.menus.shared import read_shapes, shallow_depth
from gemmdb.kernels.rules import shallow
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
"""Rows, columns and depth of a tile, stages, warps."""
TILES = {name: dict(lists) for name, lists in read_shapes("inductor").items()}
"""Lists of tiles by the smallest size that they apply to, the most promising first. `tiles` and `persistent`: of the
plain templates, by M, for elements of 2 bytes; `integer`: of int8. `batched`: of the template of batches, by M; each is
cut to the size of the matrices. `small_batched` is tried as well for more than SMALL_ROWS rows where the first of those
leaves multiprocessors without work: max-autotune, which tries such tiles, was up to 1.2 times as fast there on an H200.
`scaled`, `scaled_persistent`: of fp8 elements, by M: the better half of the tiles that were tried on 36 problems on an
H200. For many rows, a persistent one was always faster; the others serve problems with a bias, which those do not take.
`grouped`: by the mean number of rows of the groups that have some; where the groups divide K, those for many rows.
Tiles of fp8 are twice as deep, as far as the template takes them."""
SHALLOW_TILES = ((32, 64, 4), (64, 64, 4))
"""Rows, columns and warps of a tile for a shallow K. Our own kernel has more."""
SMALL_ROWS = 32
DEEPEST = 256
"""The deepest tile of Inductor's own lists."""


def configs(problem: Problem, device: Device) -> list[Config]:
    """The legal configs for a problem, in a fixed order. None if the weight is a constant of the graph, since the code
    then cannot be generated without the weight."""
    if problem.constant:
        return []
    sums = [Config.of(SUM.backend, SUM.name)] if problem.op in SUM.ops and 1 in (problem.m, problem.n) else []
    found = dict.fromkeys((*_padded(problem), *_templates(problem, device), *sums))
    return [config for config in found if not config.rejection(problem, device)]


def _padded(problem: Problem) -> Iterator[Config]:
    if problem.op not in PADDED.ops or not misaligned(problem):
        return
    if (form := padded_form(problem)) is not None:
        yield form
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
        yield from (_config("inductor_mm", tile) for tile in _listed("scaled", problem.m))
        yield from (_config(SCALED_TMA, tile) for tile in _listed("scaled_persistent", problem.m))
        return
    aligned = not misaligned(problem)
    # For aligned, skinny GEMMs, our own kernels have these shapes and narrower ones.
    if problem.spec.dequantises or (aligned and problem.m < SKINNY_ROWS):
        return
    if shallow(problem):
        yield from (_config("inductor_mm", (m, n, shallow_depth(problem), 2, warps)) for m, n, warps in SHALLOW_TILES)
        return
    if problem.spec.integer:
        yield from (
            _config("inductor_mm", tile) for tile in _listed("integer", 1)[: ALIGNED_TILES if aligned else None]
        )
        return
    # A tile of fp32 takes as many bytes as one of bf16.
    shrink = max(ITEM_SIZES[problem.a.dtype] // 2, 1)
    lists = ((TMA, "persistent", ALIGNED_PERSISTENT), ("inductor_mm", "tiles", ALIGNED_TILES))
    for kernel, tiles, few in lists:
        for m, n, k, stages, warps in _listed(tiles, problem.m)[: few if aligned else None]:
            yield _config(kernel, (m, n, k // shrink, stages, warps))


def _grouped(problem: Problem) -> Sequence[Tile]:
    """The tiles of the template of groups."""
    rows = problem.m if problem.ragged == "k" else -(-problem.m // max(problem.active_groups, 1))
    tiles = _listed("grouped", rows)
    deeper = 2 // ITEM_SIZES[problem.a.dtype]
    return [(m, n, min(k * deeper, DEEPEST), stages, warps) for m, n, k, stages, warps in tiles]


def _batched(problem: Problem, device: Device) -> Iterator[Tile]:
    """The tiles of the template of batches, without repeats: each side at most the power of two that holds the matrix,
    which is often as small as an attention head."""
    shrink = max(ITEM_SIZES[problem.a.dtype] // 2, 1)
    tiles, found = _listed("batched", problem.m), dict[Tile, None]()
    few = problem.batch * tile_count(problem.m, problem.n, tiles[0][:2]) < device.units
    for m, n, k, stages, warps in (
        *tiles,
        *(_listed("small_batched", problem.m) if few and problem.m > SMALL_ROWS else ()),
    ):
        sides = zip((m, n, max(k // shrink, 16)), (problem.m, problem.n, problem.k), strict=True)
        rows, columns, depth = (min(side, max(16, 1 << (size - 1).bit_length())) for side, size in sides)
        # If one step multiplies the whole K, there is nothing to load ahead.
        found[rows, columns, depth, min(stages, max(-(-problem.k // depth), 2)), warps] = None
    yield from found


def _listed(name: str, size: int) -> Sequence[Tile]:
    """The tiles of a list of TILES for a size."""
    lists = TILES[name]
    return lists[max((least for least in lists if least <= size), default=1)]


def _config(kernel: str, tile: Tile) -> Config:
    m, n, k, stages, warps = tile
    return Config.of("triton", kernel, block_m=m, block_n=n, block_k=k, group_m=BAND_ROWS, stages=stages, warps=warps)
