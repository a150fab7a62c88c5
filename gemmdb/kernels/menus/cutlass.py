"""The configs of our CUTLASS kernels that are tried.

Of `gemm`, few kernels (nvcc takes half a minute for each) in several orders: the split of K and the order of tiles are
arguments of a compiled kernel, so trying them needs no compiling. Of the others, more: nvcc takes two to ten
seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gemmdb.kernels.config import Config
from gemmdb.kernels.cutlass.int4_stream import STEP, resident_warps
from gemmdb.kernels.hardware import filling, tile_count
from gemmdb.kernels.menus.shared import read_shapes, up_to
from gemmdb.kernels.registry import KERNELS
from gemmdb.key.device import Device
from gemmdb.key.ops import SCALE_BLOCK
from gemmdb.key.problem import Problem

COOPERATIVE = "cooperative"
MAX_SPLITS = 16
DEEP_SWIZZLE = 8


@dataclass(frozen=True)
class Entry:
    """One kernel: tile, cluster, whether two warp groups share a tile (cooperative) or take turns (pingpong), whether
    the weight is the left operand, and whether the tile scheduler splits K."""

    m: int
    n: int
    k: int
    cluster: tuple[int, int] = (1, 1)
    schedule: str = "pingpong"
    swap: int = 0
    split: bool = False


_SCALED = "scaled_mm"
_MENUS = {
    op: [(limit, [Entry(*entry) for entry in entries]) for limit, entries in menu]
    for op, menu in read_shapes("cutlass").items()
}
"""With few rows, M is the width of a tile, and the tile's 64 or 128 rows are columns of the weight. Tiles of 64 rows,
with two warp groups on one tile each, win while there are few tiles. Stream-K pays when a tile has many weights to
convert, and costs about 5 us for the fixup. Timings: benchmarks/results/h200/cutlass."""
STREAMS = Entry(128, 128, 64, (1, 1), COOPERATIVE, split=True)
"""The kernel that splits K if none in the menu does."""


_SCALED_BLOCKS = read_shapes("cutlass_blocks")[_SCALED]
"""By the number of rows, (tile along M, along N, swap, cluster, splits of K). Timings: benchmarks/results/h200."""
_INT4 = read_shapes("cutlass_int4")["mixed_mm"]
"""By the number of rows, (tile along M, along N, along K, warp groups, splits of K)."""
_INT4_STREAM = read_shapes("cutlass_int4_stream")["mixed_mm"]
"""By the number of rows, (tile along M, along N, rows of the weight for each warp, warps, splits of K)."""


def entries(problem: Problem) -> tuple[Entry, ...]:
    """The kernels for an op and a number of rows."""
    return tuple(up_to(_MENUS.get(problem.op, _MENUS["mm"]), problem.m))


def configs(problem: Problem, device: Device, streams: bool = False) -> list[Config]:
    """The legal cutlass configs to try on a problem, kernel by kernel; with `streams` one of them splits K."""
    if problem.op == _SCALED:
        found = dict.fromkeys(_scaled_blocks(problem, device) if problem.scales == "block" else ())
        return [config for config in found if config.rejection(problem, device) is None]
    if problem.int4 is not None:
        found = dict.fromkeys((*_int4(problem, device), *_int4_stream(problem, device)))
        return [config for config in found if config.rejection(problem, device) is None]
    if problem.op not in KERNELS["cutlass", "gemm"].ops:
        return []
    chosen = entries(problem)
    if streams and not any(entry.split for entry in chosen):
        chosen += (STREAMS,)
    found = dict.fromkeys(config for entry in chosen for config in _orders(entry, problem, device))
    return [config for config in found if config.rejection(problem, device) is None]


def _orders(entry: Entry, problem: Problem, device: Device) -> Iterator[Config]:
    """A kernel in each order worth trying: stream-K and the splits that fill the multiprocessors once; without a split,
    tiles row by row and, if there are many, also in bands that share their operands in L2."""
    tiles = tile_count(problem.m, problem.n, (entry.m, entry.n))
    if entry.split:
        for split in sorted({0, *filling(tiles, device.units)} - {1}):
            if split <= MAX_SPLITS:
                yield _config(entry, split, 1)
        return
    yield _config(entry, 1, 1)
    if tiles > 2 * device.units:
        yield _config(entry, 1, DEEP_SWIZZLE)


def _scaled_blocks(problem: Problem, device: Device) -> Iterator[Config]:
    for m, n, swap, cluster, splits in up_to(_SCALED_BLOCKS, problem.m):
        fitting = _fitting(problem, device, (m, n, SCALE_BLOCK), splits)
        yield from (_cluster(m, n, swap, cluster, split) for split in fitting)


def _int4(problem: Problem, device: Device) -> Iterator[Config]:
    for m, n, k, groups, splits in up_to(_INT4, problem.m):
        yield from (_weight(m, n, k, groups, split) for split in _fitting(problem, device, (m, n, k), splits))


def _int4_stream(problem: Problem, device: Device) -> Iterator[Config]:
    for m, n, rows, warps, splits in up_to(_INT4_STREAM, problem.m):
        along = warps * rows // n
        fitting = _fitting(problem, device, (m, n, STEP * along), splits, resident_warps(m, rows) // warps)
        yield from (_stream(m, n, rows, warps, split) for split in fitting)


def _fitting(
    problem: Problem, device: Device, block: tuple[int, int, int], splits: Sequence[int], resident: int = 1
) -> list[int]:
    """The splits of a tile that start no more than half as many programs again as the multiprocessors hold, `resident`
    each. 1, no split, is one of them unless others are and it leaves more than three quarters of the multiprocessors
    without work."""
    tiles, steps, room = tile_count(problem.m, problem.n, block[:2]), -(-problem.k // block[2]), device.units * resident
    fitting = [one for one in splits if one > 1 and 2 * one <= steps and 2 * tiles * one <= 3 * room]
    whole = [1] if 1 in splits and (not fitting or 4 * tiles >= device.units) else []
    return [*whole, *fitting]


def every_scaled_blocks() -> list[Config]:
    """All configs of `scaled_blocks` that are tried on any problem. The split that fills a GPU differs by size, so a
    lookup may need each of them."""
    listed = (entry for _, entries in _SCALED_BLOCKS for entry in entries)
    return list(dict.fromkeys(
        _cluster(m, n, swap, cluster, split) for m, n, swap, cluster, splits in listed for split in splits
    ))  # fmt: skip


def every_int4() -> list[Config]:
    """All configs of `int4` that are tried on any problem."""
    listed = (entry for _, entries in _INT4 for entry in entries)
    return list(
        dict.fromkeys(_weight(m, n, k, groups, split) for m, n, k, groups, splits in listed for split in splits)
    )


def every_int4_stream() -> list[Config]:
    """All configs of `int4_stream` that are tried on any problem."""
    listed = (entry for _, entries in _INT4_STREAM for entry in entries)
    return list(
        dict.fromkeys(_stream(m, n, rows, warps, split) for m, n, rows, warps, splits in listed for split in splits)
    )


def _stream(m: int, n: int, rows: int, warps: int, split: int) -> Config:
    return Config.of("cutlass", "int4_stream", tile_m=m, tile_n=n, rows=rows, warps=warps, split_k=split)


def _weight(m: int, n: int, k: int, groups: int, split: int) -> Config:
    return Config.of("cutlass", "int4", tile_m=m, tile_n=n, tile_k=k, groups=groups, split_k=split)


def _cluster(m: int, n: int, swap: int, cluster: tuple[int, int], split: int) -> Config:
    return Config.of(
        "cutlass", "scaled_blocks", tile_m=m, tile_n=n, cluster_m=cluster[0], cluster_n=cluster[1], split_k=split,
        swap=swap,
    )  # fmt: skip


def _config(entry: Entry, split: int, swizzle: int) -> Config:
    return Config.of(
        "cutlass", "gemm", tile_m=entry.m, tile_n=entry.n, tile_k=entry.k, cluster_m=entry.cluster[0],
        cluster_n=entry.cluster[1], schedule=entry.schedule, split_k=split, swizzle=swizzle, raster="auto",
        swap=entry.swap,
    )  # fmt: skip
