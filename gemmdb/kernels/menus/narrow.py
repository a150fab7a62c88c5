"""What is tried of `narrow`: an entry is (BLOCK_N, BLOCK_K, warps, blocks per multiprocessor, modes, swaps), with
BLOCK_K and blocks as in the menu of `tile`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from gemmdb.kernels import hardware
from gemmdb.kernels.config import Config
from gemmdb.kernels.menus import tile
from gemmdb.kernels.menus.shared import BOTH, PLAIN, SWAPPED, Menu, Shape, deep, split, up_to, way
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem

MASKED, WRAPPED, STAGGERED, TURNED = ("mask", 0), ("wrap", 0), ("mask", 1), ("wrap", 1)
"""What a narrow kernel does with rows beyond the end, and whether its programs start at different places of K."""


@dataclass(frozen=True)
class Narrow:
    """One shape of a narrow kernel, for tile height `m`."""

    m: int
    n: int
    k: int
    warps: int
    resident: tuple[int, ...]
    modes: tuple[tuple[str, int], ...]
    swaps: tuple[int, ...] = PLAIN


def _narrow(m: int, *rows: tuple[object, ...]) -> tuple[Narrow, ...]:
    return tuple(Narrow(m, *row) for row in rows)  # type: ignore[arg-type]


_MIXED = (
    (16, _narrow(
        16,
        (64, 128, 4, (4, 8), (STAGGERED, MASKED)), (128, 256, 4, (2,), (MASKED, STAGGERED, WRAPPED)),
        (32, 256, 4, (4,), (MASKED, STAGGERED)), (64, 256, 4, (4,), (MASKED,)), (64, 512, 4, (2,), (WRAPPED,)),
        (32, 128, 2, (4,), (STAGGERED, MASKED)), (64, 256, 2, (4,), (WRAPPED,)), (16, 256, 2, (4,), (WRAPPED,)),
        (128, 128, 4, (4, 2), (STAGGERED, MASKED)), (32, 256, 2, (4,), (WRAPPED,)),
    )),
    (32, _narrow(
        32,
        (64, 128, 2, (4,), (WRAPPED,)), (128, 128, 4, (2,), (WRAPPED, TURNED)), (128, 256, 4, (1,), (WRAPPED,)),
    )),
    (64, _narrow(64, (64, 64, 4, (4,), (MASKED, STAGGERED)), (128, 64, 4, (2,), (MASKED,)))),
)  # fmt: skip
_INT = ((32, _narrow(32, (32, 512, 4, (2,), (STAGGERED,)), (64, 256, 4, (2,), (MASKED,), SWAPPED))),)
_MM = (
    (16, _narrow(
        16,
        (64, 128, 4, (2, 4), (MASKED,), BOTH), (32, 256, 2, (2,), (MASKED,)), (64, 64, 4, (4,), (STAGGERED,), SWAPPED),
        (128, 128, 4, (2, 1), (STAGGERED,)), (128, 64, 8, (1,), (MASKED,), SWAPPED),
        (128, 64, 4, (2,), (MASKED,), SWAPPED),
    )),
    (32, _narrow(32, (64, 128, 4, (2,), (MASKED,), SWAPPED), (128, 128, 4, (1,), (STAGGERED,), SWAPPED))),
)  # fmt: skip

_FP8 = (
    (16, _narrow(
        16,
        (64, 128, 4, (8, 4, 2), (MASKED,), SWAPPED), (64, 256, 4, (4, 2), (MASKED, STAGGERED), SWAPPED),
        (128, 256, 4, (2, 1), (MASKED,), SWAPPED), (128, 128, 4, (4, 2), (MASKED,), SWAPPED),
        (64, 128, 4, (8, 4), (STAGGERED,)), (128, 256, 4, (2,), (MASKED,)), (64, 256, 4, (4, 2), (MASKED,)),
        (16, 256, 2, (4,), (WRAPPED,)), (16, 512, 2, (4,), (MASKED,)), (32, 256, 2, (4,), (MASKED,)),
        (128, 128, 4, (4,), (MASKED,)), (32, 128, 2, (4,), (STAGGERED,)),
    )),
    (32, _narrow(
        32,
        (64, 128, 4, (4, 2), (MASKED, STAGGERED), BOTH), (32, 256, 2, (4, 2), (MASKED,)),
        (64, 256, 4, (2, 4), (MASKED, STAGGERED), BOTH), (32, 512, 4, (2,), (STAGGERED,)),
        (128, 128, 4, (2,), (MASKED,), BOTH), (128, 256, 4, (1,), (MASKED,), SWAPPED),
    )),
    (64, _narrow(
        64,
        (64, 128, 4, (4, 2), (MASKED,), BOTH), (64, 256, 4, (2, 1), (MASKED, STAGGERED), BOTH),
        (128, 128, 4, (2, 1), (MASKED,), BOTH), (32, 256, 4, (2,), (MASKED,)), (128, 256, 4, (1,), (MASKED,), BOTH),
        (128, 128, 8, (2,), (MASKED,), SWAPPED),
        # Tiles that are legal without fast accumulation too.
        (64, 128, 2, (4, 2), (MASKED,)), (32, 256, 2, (4,), (MASKED,)),
    )),
)  # fmt: skip
_MENUS = {"mixed_mm": _MIXED, "int_mm": _INT, "scaled_mm": _FP8}


def _usual(problem: Problem, device: Device) -> Iterator[Config]:
    for entry in up_to(_MENUS.get(problem.op, _MM), problem.m):
        for resident, swap in product(entry.resident, entry.swaps):
            shape = Shape(entry.m, entry.n, deep(problem, entry.k), entry.warps, resident)
            for one in split(problem, device, shape, "pointer", swap, (way(problem),), idle=False):
                if one.values["reduce"] != "kernel":
                    yield from (_of_tile(one, rows, stagger) for rows, stagger in entry.modes)


def _whole(problem: Problem, device: Device) -> Iterator[Config]:
    if problem.m > hardware.SKINNY_ROWS:
        return
    for one in tile.whole(problem, device):
        if one.values["load"] == "pointer" and one.values["reduce"] != "kernel":
            yield from (_of_tile(one, rows, stagger) for rows, stagger in product(("wrap", "mask"), (0, 1)))


def _of_tile(one: Config, rows: str, stagger: int) -> Config:
    """The narrow config with the parameters that it shares with a config of `tile`."""
    same = {name: value for name, value in one.params if name not in ("group_m", "reduce", "load")}
    return Config.of("triton", "narrow", **same, rows=rows, stagger=stagger)


MENU = Menu(_usual, _whole)
