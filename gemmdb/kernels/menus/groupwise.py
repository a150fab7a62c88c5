"""What is tried of `groupwise`.

An entry of `groupwise.json` is (BLOCK_N, BLOCK_K, warps, blocks per multiprocessor). The pipeline has
as many stages as fit, and K is split until the multiprocessors are full once. The list for up to
64 rows has what was within 15% of the best on an H200 on nine problems of Llama-3-8B's layers; the other is not
measured: its entries are those of `int4`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from gemmdb.kernels import hardware
from gemmdb.kernels.config import Config
from gemmdb.kernels.menus.shared import Menu, dequant, dequants, read_shapes, splits_once, up_to
from gemmdb.kernels.triton.groupwise import shared_bytes
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem

MIN_STAGES = 2
_OTHER_BYTES = 2048
"""Shared memory of a block beside its pipeline: what the system takes (1 KB), and tiles whose layout changes."""
_SHAPES = read_shapes("groupwise")
Tile = tuple[int, int, int]
"""Rows, columns and depth."""
Launch = tuple[int, int, str]
"""Warps, blocks per multiprocessor, and how a weight is dequantised."""


def _usual(problem: Problem, device: Device) -> Iterator[Config]:
    own = problem.int4
    if own is None or own.bits != 8:
        return
    mode = dequant(problem)
    for height in _heights(problem.m):
        for n, k, warps, residents in up_to(_SHAPES["tiles"], problem.m):
            for resident in residents:
                yield from _configs(problem, device, (height, n, k), (warps, resident, mode))


def _heights(m: int) -> tuple[int, ...]:
    """Of tiles: what holds all rows, or what large matrices are cut into."""
    least = max(8, 1 << (m - 1).bit_length())
    return (least,) if least <= hardware.SKINNY_ROWS else (64, 128, 256)


def _whole(problem: Problem, device: Device) -> Iterator[Config]:
    heights = [height for height in (8, 16, 32, 64, 128, 256) if height < 2 * max(problem.m, 8)]
    launches = list(product((1, 2, 4, 8), (1, 2, 3, 4, 6, 8), dequants(problem)))
    for block in product(heights, (32, 64, 128, 256), (32, 64, 128, 256)):
        for launch in launches:
            yield from _configs(problem, device, block, launch)


def _configs(problem: Problem, device: Device, block: Tile, launch: Launch) -> Iterator[Config]:
    """The configs of a tile: with the splits of K that fill the multiprocessors once, and without a split if that
    leaves less than half of them without work."""
    warps, resident, mode = launch
    stages = _stages(device, block, warps, resident)
    if stages < MIN_STAGES:
        return
    for split in splits_once(problem, device, block, resident):
        yield Config.of(
            "triton", "groupwise", block_m=block[0], block_n=block[1], block_k=block[2], split_k=split, dequant=mode,
            warps=warps, stages=stages,
        )  # fmt: skip


def _stages(device: Device, block: Tile, warps: int, resident: int) -> int:
    """The stages that fit when so many blocks share a multiprocessor, at most MAX_STAGES; 0 if none does."""
    room = hardware.shared_bytes(device) // resident - _OTHER_BYTES
    fitting = (one for one in range(hardware.MAX_STAGES, 0, -1) if shared_bytes(block, warps, one, device) <= room)
    return next(fitting, 0)


GROUPWISE = Menu(_usual, _whole)
