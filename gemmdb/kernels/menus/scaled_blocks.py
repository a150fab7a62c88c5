"""What is tried of `scaled_blocks`: (BLOCK_M, BLOCK_N, warps, blocks per multiprocessor, swap), by the largest M."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from gemmdb.kernels import hardware
from gemmdb.kernels.config import Config
from gemmdb.kernels.menus.shared import Menu, Shape, read_shapes, stages, up_to
from gemmdb.key.device import Device
from gemmdb.key.ops import SCALE_BLOCK
from gemmdb.key.problem import Problem

_MENUS = read_shapes("scaled_blocks")


def _usual(problem: Problem, device: Device) -> Iterator[Config]:
    for m, n, warps, resident, swap in up_to(_MENUS["scaled_mm"], problem.m):
        yield from _configs(problem, device, Shape(m, n, SCALE_BLOCK, warps, resident), swap)


def _whole(problem: Problem, device: Device) -> Iterator[Config]:
    for m, n, warps, resident, swap in product((16, 32, 64, 128), (16, 32, 64, 128), (2, 4, 8), (1, 2, 4), (0, 1)):
        if m < 2 * max(problem.m, 8):
            yield from _configs(problem, device, Shape(m, n, SCALE_BLOCK, warps, resident), swap)


def _configs(problem: Problem, device: Device, shape: Shape, swap: int) -> Iterator[Config]:
    """The configs of a shape without a split of K, and with the splits that fill the multiprocessors once. None for
    other kinds of scales."""
    ahead = stages(problem, device, shape, "pointer", swap) if problem.scales == "block" else 0
    if ahead < 2 or problem.constant:
        return
    tiles = hardware.tile_count(problem.m, problem.n, (shape.m, shape.n))
    splits = hardware.splits(tiles, device.units * shape.resident, -(-problem.k // shape.k))
    for slices in (1, *splits):
        yield Config.of(
            "triton", "scaled_blocks", block_m=shape.m, block_n=shape.n, block_k=shape.k, group_m=hardware.BAND_ROWS,
            split_k=slices, swap=swap, warps=shape.warps, stages=ahead,
        )  # fmt: skip


MENU = Menu(_usual, _whole)
