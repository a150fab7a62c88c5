"""What is tried of `grouped`: an entry is (BLOCK_M, BLOCK_N, BLOCK_K, warps, programs per multiprocessor, ways). A way
is (swap, load, flatten). As many stages as fit are used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from gemmdb.kernels.config import Config
from gemmdb.kernels.menus.shared import Menu, Shape, stages, up_to
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem

Way = tuple[int, str, int]
Entry = tuple[int, int, int, int, int, Sequence[Way]]
POINTER, SWAPPED, TMA, SWAPPED_TMA = (0, "pointer", 0), (1, "pointer", 0), (0, "tma", 0), (1, "tma", 0)
FLAT, SWAPPED_FLAT = (0, "tma", 1), (1, "tma", 1)
_ROWS: tuple[tuple[int, Sequence[Entry]], ...] = (
    (4, (
        (16, 64, 256, 4, 2, (POINTER, TMA, SWAPPED, SWAPPED_FLAT)), (16, 32, 256, 4, 4, (POINTER,)),
        (16, 128, 128, 4, 2, (POINTER, SWAPPED, SWAPPED_TMA)), (16, 64, 128, 4, 4, (POINTER, TMA)),
        (16, 32, 256, 2, 4, (POINTER,)), (16, 32, 512, 4, 2, (POINTER, TMA)), (16, 16, 512, 4, 4, (POINTER,)),
        (16, 64, 256, 4, 1, (POINTER, TMA)), (16, 128, 256, 4, 1, (SWAPPED_FLAT,)), (16, 128, 256, 8, 1, (POINTER,)),
    )),
    (16, (
        (16, 64, 256, 4, 2, (POINTER, TMA, SWAPPED_FLAT)), (16, 32, 256, 4, 4, (POINTER,)),
        (16, 128, 128, 4, 2, (POINTER, SWAPPED)), (16, 64, 128, 4, 4, (POINTER,)),
        (32, 64, 256, 4, 2, (POINTER, TMA)), (32, 64, 128, 4, 4, (POINTER, TMA)),
        (32, 128, 128, 4, 2, (POINTER, TMA, SWAPPED_FLAT)), (64, 64, 128, 4, 2, (TMA,)),
        (64, 128, 64, 4, 2, (TMA, FLAT)), (64, 128, 128, 4, 1, (TMA,)),
    )),
    (32, (
        (32, 64, 128, 4, 4, (POINTER, TMA, SWAPPED_FLAT)), (32, 128, 128, 4, 2, (POINTER, TMA, SWAPPED_FLAT)),
        (64, 64, 128, 4, 3, (TMA,)), (64, 128, 64, 4, 2, (POINTER, TMA, FLAT)), (64, 128, 64, 4, 3, (TMA, FLAT)),
        (64, 128, 128, 4, 1, (TMA, FLAT)), (64, 256, 64, 4, 1, (TMA, FLAT)), (128, 128, 64, 4, 2, (TMA,)),
    )),
    (128, (
        (64, 128, 64, 4, 2, (TMA, FLAT)), (64, 128, 64, 4, 3, (POINTER, TMA)), (64, 128, 128, 4, 2, (TMA, FLAT)),
        (64, 256, 64, 4, 1, (POINTER, TMA, FLAT)), (128, 128, 64, 8, 2, (TMA,)), (128, 128, 64, 4, 2, (TMA, FLAT)),
        (128, 256, 64, 8, 1, (TMA, FLAT)),
    )),
    (1 << 31, (
        (128, 256, 64, 8, 1, (FLAT, TMA, POINTER)), (64, 256, 64, 4, 1, (FLAT, TMA)),
        (128, 128, 64, 4, 2, (FLAT, TMA)), (128, 128, 64, 8, 2, (TMA,)), (64, 128, 64, 4, 2, (TMA,)),
        (64, 128, 64, 4, 3, (TMA,)), (128, 256, 128, 8, 1, (FLAT,)),
    )),
)  # fmt: skip
"""For groups that divide M, by the mean number of rows of the groups that have some."""
_FP8_ROWS: tuple[tuple[int, Sequence[Entry]], ...] = (
    (4, (
        (16, 64, 256, 4, 4, (SWAPPED, SWAPPED_FLAT, POINTER)), (16, 128, 256, 4, 2, (SWAPPED, SWAPPED_FLAT)),
        (16, 64, 256, 4, 2, (SWAPPED, SWAPPED_TMA, TMA)), (16, 128, 128, 4, 4, (SWAPPED, SWAPPED_TMA)),
        (16, 64, 512, 4, 2, (POINTER, SWAPPED)), (16, 32, 512, 4, 4, (POINTER,)), (16, 128, 256, 8, 1, (SWAPPED_FLAT,)),
        (16, 64, 256, 4, 1, (POINTER, TMA)),
    )),
    (16, (
        (16, 64, 256, 4, 4, (SWAPPED, SWAPPED_FLAT, POINTER)), (16, 128, 256, 4, 2, (SWAPPED, SWAPPED_FLAT)),
        (32, 64, 256, 4, 3, (SWAPPED, SWAPPED_FLAT)), (32, 128, 128, 4, 4, (SWAPPED, SWAPPED_FLAT)),
        (16, 128, 128, 4, 4, (SWAPPED,)), (16, 64, 256, 4, 2, (TMA,)), (32, 128, 256, 4, 2, (SWAPPED_FLAT,)),
        (64, 64, 256, 4, 2, (TMA,)), (64, 128, 128, 4, 2, (TMA, FLAT)),
    )),
    (32, (
        (32, 64, 256, 4, 3, (SWAPPED, SWAPPED_FLAT)), (32, 128, 128, 4, 4, (SWAPPED, SWAPPED_FLAT, SWAPPED_TMA)),
        (64, 128, 128, 4, 3, (TMA, FLAT, POINTER)), (32, 128, 256, 4, 2, (SWAPPED_FLAT, SWAPPED_TMA)),
        (64, 64, 256, 4, 3, (TMA, FLAT)), (64, 128, 256, 4, 1, (TMA, FLAT)), (64, 256, 128, 4, 1, (TMA, FLAT)),
        (128, 128, 128, 4, 2, (TMA,)),
    )),
    (128, (
        (64, 128, 128, 4, 3, (TMA, FLAT, POINTER)), (64, 128, 256, 4, 2, (TMA, FLAT)),
        (64, 256, 128, 4, 1, (TMA, FLAT)), (128, 128, 128, 8, 2, (TMA, FLAT)), (128, 128, 128, 4, 2, (TMA, FLAT)),
        (64, 256, 128, 4, 2, (TMA,)), (128, 256, 128, 8, 1, (TMA, FLAT)),
    )),
    (1 << 31, (
        (128, 256, 128, 8, 1, (FLAT, TMA)), (128, 128, 128, 8, 2, (FLAT, TMA)), (64, 256, 128, 4, 1, (FLAT, TMA)),
        (128, 128, 128, 4, 2, (FLAT, TMA)), (256, 128, 128, 8, 1, (FLAT, TMA)), (64, 128, 128, 4, 3, (TMA,)),
        (128, 256, 64, 8, 1, (FLAT,)), (128, 128, 256, 8, 1, (FLAT,)),
    )),
)  # fmt: skip
"""The same of fp8: tiles twice as deep. With few rows the weight is the left operand: the warp-group instructions then
multiply fp8 as it is, and other instructions fp16."""
_DEPTHS: tuple[tuple[int, Sequence[Entry]], ...] = (
    (32, (
        (128, 128, 32, 4, 2, (POINTER, TMA)), (128, 128, 32, 4, 3, (POINTER,)), (64, 128, 32, 4, 4, (POINTER,)),
        (128, 128, 32, 8, 2, (POINTER, TMA)), (128, 128, 16, 4, 3, (POINTER,)), (64, 256, 32, 4, 2, (POINTER,)),
        (128, 256, 32, 8, 1, (POINTER,)),
    )),
    (1 << 31, (
        (128, 128, 64, 4, 2, (POINTER, TMA)), (128, 128, 64, 4, 3, (POINTER,)), (128, 128, 64, 8, 2, (POINTER, TMA)),
        (128, 256, 64, 8, 1, (POINTER, TMA)), (128, 128, 32, 4, 3, (POINTER, TMA)), (64, 128, 64, 4, 4, (POINTER,)),
        (64, 256, 64, 4, 2, (POINTER, TMA)), (64, 128, 64, 4, 2, (POINTER,)),
    )),
)  # fmt: skip
"""For groups that divide K, by their mean depth."""

_SPLIT: tuple[tuple[int, Sequence[Entry]], ...] = (
    (4, ((16, 64, 256, 4, 2, (POINTER, TMA)), (16, 128, 128, 4, 2, (SWAPPED,)))),
    (16, ((16, 64, 256, 4, 2, (POINTER, TMA)), (32, 128, 128, 4, 2, (TMA,)))),
    (128, ((64, 128, 128, 4, 1, (TMA,)), (64, 128, 64, 4, 3, (TMA,)))),
)
_FP8_SPLIT: tuple[tuple[int, Sequence[Entry]], ...] = (
    (16, ((16, 64, 256, 4, 4, (SWAPPED,)), (16, 128, 256, 4, 2, (SWAPPED,)))),
    (128, ((64, 128, 256, 4, 1, (TMA,)), (64, 128, 128, 4, 3, (TMA,)))),
)
"""The same with a split K, where there are few tiles."""
SLICES, LEAST_STEPS = 4, 4
"""The most slices of a tile, and steps of each."""
MOST_ROUNDS = 4
"""Where each program has more tiles than that, it does not matter that some have one less."""


def _usual(problem: Problem, device: Device) -> Iterator[Config]:
    rows, split = (_FP8_ROWS, _FP8_SPLIT) if problem.scaled else (_ROWS, _SPLIT)
    entries, total = (rows, problem.m) if problem.ragged == "m" else (_DEPTHS, problem.k)
    mean = -(-total // max(problem.active_groups, 1))
    for shape, way in _shapes(up_to(entries, mean)):
        yield from _fitted(problem, device, shape, way)
    for shape, way in _shapes(up_to(split, mean) if problem.ragged == "m" else ()):
        if _few(problem, device, shape):
            yield from _fitted(problem, device, shape, way, SLICES)


def _shapes(entries: Sequence[Entry]) -> Iterator[tuple[Shape, Way]]:
    for *shape, ways in entries:
        for way in ways:
            yield Shape(*shape), way


def _few(problem: Problem, device: Device, shape: Shape) -> bool:
    """Whether the last round of tiles matters, and its tiles have steps enough for some slices."""
    active = max(problem.active_groups, 1)
    tiles = active * -(-problem.m // (active * shape.m)) * -(-problem.n // shape.n)
    steps = -(-problem.k // shape.k)
    return tiles <= MOST_ROUNDS * device.units * shape.resident and steps >= 2 * LEAST_STEPS


def _whole(problem: Problem, device: Device) -> Iterator[Config]:
    sides, depths = (16, 32, 64, 128, 256), (16, 32, 64, 128, 256, 512)
    ways = (POINTER, SWAPPED, TMA, SWAPPED_TMA, FLAT, SWAPPED_FLAT)
    for m, n, k, warps, resident, way in product(sides, sides, depths, (2, 4, 8), (1, 2, 3, 4), ways):
        shape = Shape(m, n, k, warps, resident)
        for slices in (1, SLICES) if problem.ragged == "m" and not way[2] else (1,):
            yield from _fitted(problem, device, shape, way, slices)


def _fitted(problem: Problem, device: Device, shape: Shape, way: Way, slices: int = 1) -> Iterator[Config]:
    """The config with the stages that fit, if at least two do."""
    swap, load, flatten = way
    ahead = stages(problem, device, shape, load, swap)
    split = {"split_k": slices} if slices > 1 else {}
    if ahead >= 2:
        yield Config.of(
            "triton", "grouped", block_m=shape.m, block_n=shape.n, block_k=shape.k, swap=swap, load=load,
            flatten=flatten, resident=shape.resident, warps=shape.warps, stages=ahead, **split,
        )  # fmt: skip


MENU = Menu(_usual, _whole)
