"""What is tried of `grouped`. An entry of `grouped.json` is (BLOCK_M, BLOCK_N, BLOCK_K, warps, programs per
multiprocessor, modes). A mode is (swap, load, flatten). As many stages as fit are used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from gemmdb.kernels.config import Config
from gemmdb.kernels.menus.shared import Menu, Shape, read_shapes, stages, up_to
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem

Mode = tuple[int, str, int]
Entry = tuple[int, int, int, int, int, Sequence[Mode]]
POINTER, SWAPPED, TMA, SWAPPED_TMA = (0, "pointer", 0), (1, "pointer", 0), (0, "tma", 0), (1, "tma", 0)
FLAT, SWAPPED_FLAT = (0, "tma", 1), (1, "tma", 1)
_MENUS = read_shapes("grouped")
"""`rows`: for groups that divide M, by the mean number of rows of the groups that have some. `fp8_rows`: tiles twice as
deep; with few rows the weight is the left operand: the warp-group instructions then multiply fp8 as it is, and other
instructions fp16. `depths`: for groups that divide K, by their mean depth. `split`, `fp8_split`: with a split K, where
there are few tiles."""
SLICES, LEAST_STEPS = 4, 4
"""The most slices of a tile, and steps of each."""
MAX_ROUNDS = 4
"""Where each program has more tiles than that, it does not matter that some have one less."""


def _usual(problem: Problem, device: Device) -> Iterator[Config]:
    rows, split = ("fp8_rows", "fp8_split") if problem.scaled else ("rows", "split")
    entries, total = (rows, problem.m) if problem.ragged == "m" else ("depths", problem.k)
    mean = -(-total // max(problem.active_groups, 1))
    for shape, mode in _shapes(up_to(_MENUS[entries], mean)):
        yield from _fitted(problem, device, shape, mode)
    for shape, mode in _shapes(up_to(_MENUS[split], mean) if problem.ragged == "m" else ()):
        if _few(problem, device, shape):
            yield from _fitted(problem, device, shape, mode, SLICES)


def _shapes(entries: Sequence[Entry]) -> Iterator[tuple[Shape, Mode]]:
    for *shape, modes in entries:
        for mode in modes:
            yield Shape(*shape), mode


def _few(problem: Problem, device: Device, shape: Shape) -> bool:
    """Whether the last round of tiles matters, and its tiles have steps enough for some slices."""
    active = max(problem.active_groups, 1)
    tiles = active * -(-problem.m // (active * shape.m)) * -(-problem.n // shape.n)
    steps = -(-problem.k // shape.k)
    return tiles <= MAX_ROUNDS * device.units * shape.resident and steps >= 2 * LEAST_STEPS


def _whole(problem: Problem, device: Device) -> Iterator[Config]:
    sides, depths = (16, 32, 64, 128, 256), (16, 32, 64, 128, 256, 512)
    modes = (POINTER, SWAPPED, TMA, SWAPPED_TMA, FLAT, SWAPPED_FLAT)
    for m, n, k, warps, resident, mode in product(sides, sides, depths, (2, 4, 8), (1, 2, 3, 4), modes):
        shape = Shape(m, n, k, warps, resident)
        for slices in (1, SLICES) if problem.ragged == "m" and not mode[2] else (1,):
            yield from _fitted(problem, device, shape, mode, slices)


def _fitted(problem: Problem, device: Device, shape: Shape, mode: Mode, slices: int = 1) -> Iterator[Config]:
    """The config with the stages that fit, if at least two do."""
    swap, loads, flatten = mode
    ahead = stages(problem, device, shape, loads, swap)
    split = {"split_k": slices} if slices > 1 else {}
    if ahead >= 2:
        yield Config.of(
            "triton", "grouped", block_m=shape.m, block_n=shape.n, block_k=shape.k, swap=swap, load=loads,
            flatten=flatten, resident=shape.resident, warps=shape.warps, stages=ahead, **split,
        )  # fmt: skip


MENU = Menu(_usual, _whole)
