"""What is tried of `int4`: an entry is (BLOCK_N, BLOCK_K, warps, blocks per multiprocessor). The pipeline has as many
stages as fit, and K is split until the multiprocessors are full once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from gemmdb.kernels import hardware
from gemmdb.kernels.config import Config
from gemmdb.kernels.triton.int4 import shared_bytes
from gemmdb.kernels.triton.menu import Menu, up_to
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem

LEAST_STAGES = 2
_FEW = (
    (64, 128, 4, (8, 6, 4)), (64, 256, 4, (4, 3, 2)), (64, 512, 4, (2,)), (128, 128, 4, (4, 3, 2)),
    (128, 256, 4, (2, 1)), (128, 256, 8, (2, 1)), (128, 512, 8, (1,)), (64, 64, 4, (8,)), (256, 128, 8, (2, 1)),
)  # fmt: skip
_MANY = (
    (64, 128, 4, (2,)), (128, 64, 4, (2,)), (128, 128, 4, (1, 2)), (128, 64, 8, (2, 1)), (128, 128, 8, (1,)),
    (256, 64, 8, (1,)),
)  # fmt: skip
_ENTRIES = (
    (16, ((16, _FEW),)),
    (32, ((32, _FEW), (16, _FEW[:4]))),
    (64, ((64, _FEW), (32, _FEW[:4]))),
    (1 << 31, ((64, _MANY), (128, _MANY), (256, _MANY))),
)
"""Limits of M, each with the heights of tiles and their entries."""


def _usual(problem: Problem, device: Device) -> Iterator[Config]:
    for height, entries in up_to(_ENTRIES, problem.m):
        for n, k, warps, residents in entries:
            for resident in residents:
                yield from _configs(problem, device, (height, n, k), warps, resident)


def _whole(problem: Problem, device: Device) -> Iterator[Config]:
    heights = [height for height in (16, 32, 64, 128, 256) if height < 2 * max(problem.m, 16)]
    for height, n, k, warps, resident in product(
        heights, (64, 128, 256), (32, 64, 128, 256, 512), (4, 8), (1, 2, 3, 4, 6, 8)
    ):
        yield from _configs(problem, device, (height, n, k), warps, resident)


def _configs(
    problem: Problem, device: Device, block: tuple[int, int, int], warps: int, resident: int
) -> Iterator[Config]:
    """The configs of a tile `block` (rows, columns, depth): with the splits of K that fill the multiprocessors once, and
    without a split if that leaves less than half of them without work."""
    own = problem.groups
    stages = _stages(problem, device, block, resident) if own is not None else 0
    if stages < LEAST_STAGES:
        return
    tiles = hardware.tile_count(problem.m, problem.n, block[:2])
    splits = hardware.splits(tiles, device.units * resident, -(-problem.k // block[2]))
    whole = [1] if not splits or 2 * tiles >= device.units else []
    for split in (*whole, *splits):
        yield Config.of(
            "triton", "int4", block_m=block[0], block_n=block[1], block_k=block[2], split_k=split, warps=warps,
            stages=stages,
        )  # fmt: skip


def _stages(problem: Problem, device: Device, block: tuple[int, int, int], resident: int) -> int:
    """The stages that fit when so many blocks share a multiprocessor, at most MOST_STAGES; 0 if none does."""
    room = hardware.shared_bytes(device) // resident - hardware.BARRIER_BYTES
    fitting = (s for s in range(hardware.MOST_STAGES, 0, -1) if shared_bytes(block, s, problem, device) <= room)
    return next(fitting, 0)


MENU = Menu(_usual, _whole)
