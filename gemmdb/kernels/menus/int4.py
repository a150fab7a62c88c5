"""What is tried of `int4`: an entry of `int4.json` is (BLOCK_N, BLOCK_K, warps, blocks per multiprocessor, what is
scaled). The pipeline has as many stages as fit, and K is split until the multiprocessors are full once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from gemmdb.kernels import hardware
from gemmdb.kernels.config import Config
from gemmdb.kernels.menus.shared import Menu, read_shapes, up_to
from gemmdb.kernels.triton.int4 import shared_bytes
from gemmdb.kernels.triton.int4_skinny import DEPTH, FEW_ROWS
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem

MIN_STAGES = 2
_OTHER_BYTES = 2048
"""Shared memory of a block beside its pipeline: what the system takes (1 KB), and tiles whose layout changes."""
W, S = "weights", "sums"
_MENUS = read_shapes("int4")
_BESIDE_SKINNY = 3
"""How many legal ones of these are tried for up to eight rows: on an H200, `int4_skinny` was faster on all 13 problems
with so few, by 3 to 33%."""


def _usual(problem: Problem, device: Device) -> Iterator[Config]:
    own = problem.int4
    if own is None:
        return
    entries = up_to(_MENUS["tiled" if own.inner else "bytes"], problem.m)
    if problem.m <= FEW_ROWS and problem.k % DEPTH == 0:
        entries = [entry for entry in entries if entry[4] == W or entry[1] <= own.size][:_BESIDE_SKINNY]
    for height in _heights(problem.m):
        for n, k, warps, residents, scaled in entries:
            for resident in residents:
                yield from _configs(problem, device, (height, n, k), (warps, resident, scaled))


def _heights(m: int) -> tuple[int, ...]:
    """Of tiles: what holds all rows, or what large matrices are cut into."""
    least = max(8, 1 << (m - 1).bit_length())
    return (least,) if least <= hardware.SKINNY_ROWS else (64, 128, 256)


def _whole(problem: Problem, device: Device) -> Iterator[Config]:
    heights = [height for height in (8, 16, 32, 64, 128, 256) if height < 2 * max(problem.m, 8)]
    ways = product((1, 2, 4, 8), (1, 2, 3, 4, 5, 6, 8), (W, S))
    for block, way in product(product(heights, (32, 64, 128, 256), (32, 64, 128, 256, 512)), list(ways)):
        yield from _configs(problem, device, block, way)


def _configs(
    problem: Problem, device: Device, block: tuple[int, int, int], way: tuple[int, int, str]
) -> Iterator[Config]:
    """The configs of a tile `block` (rows, columns, depth): with the splits of K that fill the multiprocessors once,
    and without a split if that leaves less than half of them without work. `way`: warps, blocks per multiprocessor,
    and what is scaled."""
    warps, resident, scaled = way
    own = problem.int4
    stages = _stages(problem, device, block, way) if own is not None else 0
    if stages < MIN_STAGES:
        return
    tiles = hardware.tile_count(problem.m, problem.n, block[:2])
    splits = hardware.splits(tiles, device.units * resident, -(-problem.k // block[2]))
    whole = [1] if not splits or 2 * tiles >= device.units else []
    for split in (*whole, *splits):
        yield Config.of(
            "triton", "int4", block_m=block[0], block_n=block[1], block_k=block[2], split_k=split, scaled=scaled,
            warps=warps, stages=stages,
        )  # fmt: skip


def _stages(problem: Problem, device: Device, block: tuple[int, int, int], way: tuple[int, int, str]) -> int:
    """The stages that fit when so many blocks share a multiprocessor, at most MAX_STAGES; 0 if none does."""
    warps, resident, scaled = way
    room = hardware.shared_bytes(device) // resident - _OTHER_BYTES
    for stages in range(hardware.MAX_STAGES, 0, -1):
        if shared_bytes(block, (warps, scaled), stages, problem, device) <= room:
            return stages
    return 0


MENU = Menu(_usual, _whole)
