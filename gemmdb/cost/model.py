"""The cost model: the microseconds of a config, and of ATen, on a problem and a machine.

A time is the time of the work at fitted shares of the public rates (`microseconds`), times a correction for what
counting misses: how well warps, pipeline and tile fit together (`traits`), and the kind of the problem (`kinds`). The
coefficients are data: `coefficients.json`, which `gemmdb.generators.fit.write` writes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import log2, prod
from operator import mul, sub
from typing import Any

from gemmdb.cost import data
from gemmdb.cost.library import bound, library
from gemmdb.cost.machine import HOME
from gemmdb.cost.work import Setting, Tile, Work, work
from gemmdb.key.problem import Problem

BLOCKS, BLOCK = ("int_mm", "mixed_mm"), 11
"""Ops with their own copy of the first BLOCK traits of a tile. In the copies of other ops, these are zeros."""


def microseconds(w: Work, c: Sequence[float]) -> Any:
    """The time of one call on cold caches, of work and coefficients in the order of COEFFICIENTS.

    It uses operators only, so the same code fits over arrays and predicts over floats. `power` says how far
    streams, latencies and instructions overlap; launches before and after do not overlap.
    """
    launch, wave, output, fixup, second, partial, dram, l2, latency, sync, wide, fma, shared, cast, bits, steps, p = c
    fixed = launch + wave * w.waves + output * w.output + fixup * w.fixup + second * w.second + partial * w.partial
    cores = sync * w.sync + wide * w.wide + fma * w.fma + shared * w.shared + cast * w.cast + bits * w.bits
    parts = (dram * w.dram) ** p + (l2 * w.l2) ** p + (latency * w.latency) ** p + (cores + steps * w.steps) ** p
    return fixed + parts ** (1 / p)


@dataclass(frozen=True, slots=True)
class Coefficients:
    """The fitted coefficients by group of kernels (`tile`, `gemv`, `cutlass`, and `aten` without traits). `rates`: in
    the order of COEFFICIENTS. `own` (for `traits`) and `common` (for `kinds`): the logarithm of the time per unit."""

    rates: Mapping[str, Sequence[float]]
    own: Mapping[str, Sequence[float]]
    common: Mapping[str, Sequence[float]]

    def __hash__(self) -> int:
        return hash(tuple(self.rates))  # Caches hold one or two of them.

    def predict(self, setting: Setting, tile: Tile) -> float:
        """Microseconds of a tile in a setting."""
        return self.of_work(setting, tile, work(setting, tile))

    def of_work(self, setting: Setting, tile: Tile, w: Work) -> float:
        """The same, if the Work of the tile is already known."""
        own, level = self.at(setting, tile.group)
        log = dot(nonzero_traits(setting, tile, w), own) + level
        return float(microseconds(w, self.rates[tile.group])) * math.exp(log)

    def slopes(self, setting: Setting, tile: Tile, w: Work) -> tuple[float, float, float]:
        """The logarithm of a tile's correction for one row and one wave, without the level of the problem, and what a
        doubling of the rows and of the waves adds to it."""
        own, _ = self.at(setting, tile.group)
        rows, columns, depth = (max(setting.problem.m, 1), 1, 1) if tile.kernel == "gemv" else (2, 1, 1)
        first = nonzero_traits(setting, tile, w._replace(waves=1))
        taller = nonzero_traits(setting.resized(rows, columns, depth), tile, w._replace(waves=1))
        longer = nonzero_traits(setting, tile, w._replace(waves=2))
        return dot(first, own), dot(map(sub, taller, first), own), dot(map(sub, longer, first), own)

    def at(self, setting: Setting, group: str) -> tuple[Sequence[float], float]:
        """Of a group in a setting: the coefficients of the `nonzero_traits`, and the contribution of the `kinds`."""

        def found() -> tuple[Sequence[float], float]:
            own = self.own[group]
            return _of_op(own, setting.problem.op) if group == "tile" else own, self.level(setting, group)

        return setting.once((self, group), found)

    def level(self, setting: Setting, group: str) -> float:
        """The contribution of the `kinds` to the logarithm of the time of a group of kernels in a setting."""
        return dot(setting.once("kinds", lambda: kinds(setting.problem)), self.common[group])

    def predict_aten(self, setting: Setting) -> float:
        """Microseconds of ATen in a setting.

        Libraries have good kernels for every arch. On another machine, ATen is assumed to reach the same share of the
        machine's bound as where it was measured. Launches cost the same everywhere.
        """
        return setting.once((self, "aten us"), lambda: self._aten(setting))

    def _aten(self, setting: Setting) -> float:
        problem, rates = setting.problem, self.rates["aten"]
        home = setting if setting.machine == HOME else Setting.of(problem, HOME)
        w = library(home)
        us = float(microseconds(w, rates)) * math.exp(self.level(setting, "aten"))
        launches = min(rates[0] + rates[4] * float(w.second), us)
        here = w if home is setting else library(setting)
        return launches + (us - launches) * bound(setting, here) / bound(home, w)


FITTED = Coefficients(data.RATES, data.TRAITS, data.KINDS)
"""The coefficients that come with the package."""


def dot(values: Iterable[float], weights: Sequence[float]) -> float:
    """The dot product, of as many values as there are weights."""
    total: float = sum(map(mul, values, weights))
    return total


def kinds(p: Problem) -> tuple[float, ...]:
    """The features that set the level of all times of a problem: op, rows, dtype, layouts, fusion. New ones come last:
    coefficients that were fitted without them have none for these."""
    rows = min(math.log2(max(p.m, 1)), 10.0)
    integer, mixed = float(p.spec.integer), float(p.spec.dequantises)
    scaled, batched = float(p.scaled), float(p.spec.batched)
    size = math.log2(max(p.n * p.k, 1)) / 10
    fused = float(p.fusion != "none")
    return (
        1.0, integer, mixed, rows, rows * rows / 10, rows * integer, rows * mixed, float(p.m == 1),
        size, size * float(p.m == 1), float(p.b.layout.order.startswith("row")),
        float(p.a.layout.order.startswith("col")), fused, fused * rows, float(p.bias is not None),
        scaled, scaled * rows, batched, batched * rows,
    )  # fmt: skip


def traits(setting: Setting, tile: Tile, w: Work) -> tuple[float, ...]:
    """The features that set the order of the configs of one problem."""
    found, op = nonzero_traits(setting, tile, w), setting.problem.op
    if tile.group != "tile":
        return found
    plain, block = (found[:-BLOCK], found[-BLOCK:]) if op in BLOCKS else (found, ())
    return (*plain, *chain(*(block if op == other else (0.0,) * BLOCK for other in BLOCKS)))


def _of_op(own: Sequence[float], op: str) -> Sequence[float]:
    """The coefficients of the `nonzero_traits` of a tile."""
    plain = len(own) - BLOCK * len(BLOCKS)
    begin = plain + BLOCK * BLOCKS.index(op) if op in BLOCKS else len(own)
    return (*own[:plain], *own[begin : begin + BLOCK])


def nonzero_traits(setting: Setting, tile: Tile, w: Work) -> tuple[float, ...]:
    """The traits that can be nonzero for this op."""
    group = tile.group
    if group == "gemv":
        n, k, warps = log2(tile.n), log2(tile.k * setting.b), log2(tile.warps)
        return n, k, warps, tile.stages, n * n, k * k, n * k, n * warps, k * warps, log2(w.waves)
    m, n, warps, rows = log2(tile.m), log2(tile.n), log2(tile.warps), min(log2(max(setting.problem.m, 1)), 10.0)
    k, split, swap, tma = log2(tile.k * setting.b), log2(tile.split), tile.swap, tile.tma
    shape = (m, n, k, warps, m * m, n * n, k * k, warps * warps, m * n, m * k, n * k, m * warps, n * warps, k * warps)
    if group == "cutlass":
        return *shape, split, swap, prod(tile.cluster), split * rows, m * rows, n * rows, swap * rows
    second, wide, kernel = w.second, w.wide > 0, tile.kernel
    own = (split, swap, tma, second, log2(w.waves), tile.stages, wide)
    flags = (
        kernel == "narrow", kernel == "persistent", kernel.startswith("inductor"),
        tile.mask, tile.mask * warps, tile.stagger, tile.stagger * k, tile.stagger * n, tile.bits,
    )  # fmt: skip
    crossed = (
        split * split, split * second, wide * tma, wide * swap, wide * n, wide * m, wide * warps,
        rows * m, rows * n, rows * k, rows * warps, rows * split, rows * swap, rows * tma, rows * second, rows * wide,
    )  # fmt: skip
    block = (m, n, k, warps, *own) if setting.problem.op in BLOCKS else ()
    return (*shape, *own, *flags, *crossed, *block)
