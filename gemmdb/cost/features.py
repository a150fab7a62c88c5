"""The features of a config for the trees on top of the cost model: numbers in a fixed order, named in FEATURES."""

from __future__ import annotations

import math

from gemmdb.cost.terms import Counts, Terms
from gemmdb.cost.work import KERNELS, Setting, Tile, Work, grid

OPS = ("mm", "addmm", "int_mm", "mixed_mm", "bmm", "scaled_mm")
"""The ops that can be modelled, in the order of their numbers in the trees. `data.OPS` are those that the formula was
fitted to."""
TREE_OPS = ("bmm", "scaled_mm")
"""Those with trees of their own, on top of a formula that was fitted to the others."""
ORDERS = ("row", "row-padded", "col", "col-padded")
REDUCES = ("none", "fixup", "kernel")
OF_PROBLEM = (
    "op", "m", "n", "k", "fused", "biased", "a_order", "b_order", "align", "a_bytes", "b_bytes", "dram",
    "batch", "scales",
)  # fmt: skip
OF_TILE = (
    "kernel", "tile_m", "tile_n", "tile_k", "split", "warps", "stages", "reduce", "swap", "tma", "bits", "mask",
    "stagger", "resident", "cluster", "filled", "last_wave", "depth", "last_step", "last_row", "used_rows", "waves",
    "latency", "l2", "steps", "cores", "shared", "dequant", "output",
)  # fmt: skip
FEATURES = (*OF_PROBLEM, "over", *OF_TILE)
"""Their names. Sizes, times and ratios are base-2 logarithms. `scales`: 1 if each row has one, else 0. `over`: the
time that the cost model expects, relative to `dram`; `filled`: programs per SM; `depth`: steps along K of a program;
`last_wave`, `last_step`, `last_row`: the remainder after the last full one; `used_rows`: the share of the tiles' rows
that belong to the problem; `waves`, `latency`, and the others relative to `dram`: as in `work.Work`."""
_NUMBERS = {kernel: number for number, kernel in enumerate(KERNELS)}
_LIBRARY = (-1.0,) * len(OF_TILE)
"""The tile features of ATen, whose kernels are unknown."""
OVER = len(OF_PROBLEM)
SHAPE = OVER + 1
COUNTS = SHAPE + OF_TILE.index("cluster") + 1
"""Where `over`, the values of `of_shape` and those of `of_counts` begin."""
_SMALL = 1e-6


def of_problem(setting: Setting) -> tuple[float, ...]:
    """The values of OF_PROBLEM, which all configs of a problem share. Raises ValueError for a layout that the model
    does not cover."""
    p = setting.problem
    return (
        OPS.index(p.op), _log(p.m), _log(p.n), _log(p.k), p.fusion != "none", p.bias is not None,
        ORDERS.index(p.a.layout.order), ORDERS.index(p.b.layout.order), p.b.layout.align, setting.a, setting.b,
        _log(setting.dram), _log(setting.batch), p.scales == "row",
    )  # fmt: skip


def over(setting: Setting, us: float) -> float:
    """The value of `over`, with `us` microseconds expected by the cost model."""
    return _log(us / setting.dram)


def of_aten(setting: Setting, us: float) -> tuple[float, ...]:
    """The other values for ATen, with `us` microseconds expected by the cost model."""
    return (over(setting, us), *_LIBRARY)


def of_tile(setting: Setting, tile: Tile, w: Work, us: float) -> tuple[float, ...]:
    """The other values for a tile and its Work, with `us` microseconds expected by the cost model."""
    p, dram = setting.problem, setting.dram
    (rows, columns), depth = grid(p, tile), p.k / tile.k / tile.split
    filled = setting.batch * rows * columns * tile.split / setting.machine.sms
    return (
        _log(us / dram), *of_shape(tile), _log(filled), filled % 1, _log(depth), depth % 1, p.m / tile.m % 1,
        p.m / (rows * tile.m), w.waves, _log(w.latency), _log(w.l2 / dram), _log(w.steps / dram),
        _log(max(w.sync, w.wide, w.fma) / dram), _log(w.shared / dram), _log((w.cast + w.bits) / dram),
        _log(w.output / dram),
    )  # fmt: skip


def of_counts(setting: Setting, terms: Terms, counts: Counts) -> tuple[float, ...]:
    """The values of OF_TILE after `cluster`, as `of_tile` has them, for a tile that does what `counts` says."""
    p, dram, machine, tile = setting.problem, setting.dram, setting.machine, terms.tile
    rows, columns, programs, steps, waves, turns = counts
    depth, held = p.k / tile.k / tile.split, waves * steps
    filled = setting.batch * rows * columns * tile.split / machine.sms
    read, dequantised = turns * terms.registers / (128 * machine.clock), turns * terms.weights / (64 * machine.clock)
    return (
        _log(filled), filled % 1, _log(depth), depth % 1, p.m / tile.m % 1,
        p.m / (rows * tile.m), waves, _log(held / max(tile.stages - 1, 1)),
        _log(terms.stage * steps * programs / machine.l2 / dram), _log(held * 1000.0 / machine.clock / dram),
        _log(terms.operations * turns / terms.speed / dram), _log(read / dram),
        _log(dequantised / dram), _log(setting.output / dram),
    )  # fmt: skip


def of_shape(tile: Tile) -> tuple[float, ...]:
    """The values of the first OF_TILE, up to `cluster`, which are the same for all problems."""
    return (
        _NUMBERS[tile.kernel], _log(tile.m), _log(tile.n), _log(tile.k), _log(tile.split),
        tile.warps, tile.stages, REDUCES.index(tile.reduce), tile.swap, tile.tma, tile.bits, tile.mask, tile.stagger,
        tile.resident, math.prod(tile.cluster),
    )  # fmt: skip


def _log(value: float) -> float:
    return math.log2(value) if value > _SMALL else -20.0
