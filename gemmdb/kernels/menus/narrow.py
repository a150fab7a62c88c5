"""What is tried of `narrow`. An entry of `narrow.json` is like one of `tile`, with modes in place of loads: what the
kernel does with rows beyond the end, and whether its programs start at different places of K."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from gemmdb.kernels import hardware
from gemmdb.kernels.config import Config
from gemmdb.kernels.menus import tile
from gemmdb.kernels.menus.shared import Menu, Shape, depth_of, dequant, read_shapes, split, up_to
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem

_MENUS = read_shapes("narrow")


def _usual(problem: Problem, device: Device) -> Iterator[Config]:
    for m, n, k, warps, residents, modes, swaps in up_to(_MENUS.get(problem.op, _MENUS["mm"]), problem.m):
        for resident, swap in product(residents, swaps):
            shape = Shape(m, n, depth_of(problem, k), warps, resident)
            for one in split(problem, device, shape, "pointer", swap, (dequant(problem),), idle=False):
                if one.values["reduce"] != "kernel":
                    yield from (_of_tile(one, rows, stagger) for rows, stagger in modes)


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
