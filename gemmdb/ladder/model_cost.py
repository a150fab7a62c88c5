"""The cost model: the microseconds of a config, and of ATen, on a problem and a machine.

A time is what the work takes at fitted shares of the public rates (`microseconds`), times a correction for what
counting does not see: how warps, pipeline and tile suit each other (`traits`) and of which kind the problem is
(`kinds`). The coefficients are data: `model_data`, which `gemmdb.generators.fit_write` writes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gemmdb.ladder import model_data
from gemmdb.ladder.model_library import bound, library
from gemmdb.ladder.model_machine import HOME
from gemmdb.ladder.model_work import Setting, Tile, Work, work
from gemmdb.problem import Problem

COEFFICIENTS = (
    "launch", "wave", "output", "fixup", "second", "partial",
    "dram", "l2", "latency", "sync", "wide", "fma", "shared", "cast", "bits", "steps", "power",
)  # fmt: skip
"""What `microseconds` takes, in order; all positive."""


def microseconds(w: Work, c: Sequence[float]) -> Any:
    """The time of one call on cold caches, of work and coefficients in the order of COEFFICIENTS.

    Written with operators alone: the same lines fit over arrays and answer a lookup over floats. Streams, latencies and
    instructions overlap, as far as `power` says; what is launched before and after does not.
    """
    launch, wave, output, fixup, second, partial, dram, l2, latency, sync, wide, fma, shared, cast, bits, steps, p = c
    fixed = launch + wave * w.waves + output * w.output + fixup * w.fixup + second * w.second + partial * w.partial
    cores = sync * w.sync + wide * w.wide + fma * w.fma + shared * w.shared + cast * w.cast + bits * w.bits
    parts = (dram * w.dram) ** p + (l2 * w.l2) ** p + (latency * w.latency) ** p + (cores + steps * w.steps) ** p
    return fixed + parts ** (1 / p)


@dataclass(frozen=True, slots=True)
class Coefficients:
    """What is fitted, by group of kernels (`tile`, `gemv`, `cutlass`, and `aten` without traits): `rates` in the order
    of COEFFICIENTS, `own` of `traits` and `common` of `kinds`, the logarithm of the time per unit."""

    rates: Mapping[str, Sequence[float]]
    own: Mapping[str, Sequence[float]]
    common: Mapping[str, Sequence[float]]

    def predict(self, setting: Setting, tile: Tile) -> float:
        """Microseconds of a tile in a setting."""
        return self.of_work(setting, tile, work(setting, tile))

    def of_work(self, setting: Setting, tile: Tile, w: Work) -> float:
        """The same, where the Work of the tile is known already."""
        log = dot(traits(setting, tile, w), self.own[tile.group]) + dot(kinds(setting.problem), self.common[tile.group])
        return float(microseconds(w, self.rates[tile.group])) * math.exp(log)

    def predict_aten(self, setting: Setting) -> float:
        """Microseconds of ATen in a setting.

        Libraries have other kernels for every arch, and all are good ones: elsewhere ATen is taken to reach the same
        share of the machine's bound as where it was measured. What launching costs is the same everywhere.
        """
        problem, rates = setting.problem, self.rates["aten"]
        home = Setting.of(problem, HOME)
        w = library(home)
        us = float(microseconds(w, rates)) * math.exp(dot(kinds(problem), self.common["aten"]))
        launches = min(rates[0] + rates[4] * float(w.second), us)
        return launches + (us - launches) * bound(setting) / bound(home)


FITTED = Coefficients(model_data.RATES, model_data.OWN, model_data.COMMON)
"""The coefficients that come with the package."""


def dot(values: Sequence[float], weights: Sequence[float]) -> float:
    """The sum of the products."""
    return sum([value * weight for value, weight in zip(values, weights, strict=True)])


def kinds(p: Problem) -> tuple[float, ...]:
    """What counts for the level of all times of a problem: op, rows, dtype, layouts, what is fused."""
    rows = min(math.log2(max(p.m, 1)), 10.0)
    integer, mixed = float(p.op == "int_mm"), float(p.op == "mixed_mm")
    size = math.log2(max(p.n * p.k, 1)) / 10
    fused = float(p.fusion != "none")
    return (
        1.0, integer, mixed, rows, rows * rows / 10, rows * integer, rows * mixed, float(p.m == 1),
        size, size * float(p.m == 1), float(p.b.layout.order.startswith("row")),
        float(p.a.layout.order.startswith("col")), fused, fused * rows, float(p.bias is not None),
    )  # fmt: skip


def traits(setting: Setting, tile: Tile, w: Work) -> tuple[float, ...]:
    """What counts for the order of the configs of one problem."""
    if tile.group == "gemv":
        n, k, warps = _log(tile.n), _log(tile.k * setting.b), _log(tile.warps)
        return n, k, warps, float(tile.stages), n * n, k * k, n * k, n * warps, k * warps, _log(w.waves)
    m, n, warps, rows = _log(tile.m), _log(tile.n), _log(tile.warps), min(_log(max(setting.problem.m, 1)), 10.0)
    k, split, swap, tma = _log(tile.k * setting.b), _log(tile.split), float(tile.swap), float(tile.tma)
    shape = (m, n, k, warps, m * m, n * n, k * k, warps * warps, m * n, m * k, n * k, m * warps, n * warps, k * warps)
    if tile.group == "cutlass":
        return *shape, split, swap, float(tile.cluster), split * rows, m * rows, n * rows, swap * rows
    op = setting.problem.op
    second, waves, stages = w.second, _log(w.waves), float(tile.stages)
    wide = float(w.wide > 0)
    own = (split, swap, tma, second, waves, stages, wide)
    kernel = tile.kernel
    flags = (
        float(kernel == "narrow"), float(kernel == "persistent"), float(kernel.startswith("inductor")),
        float(tile.mask), tile.mask * warps, float(tile.stagger), tile.stagger * k, tile.stagger * n, float(tile.bits),
    )  # fmt: skip
    crossed = (
        split * split, split * second, wide * tma, wide * swap, wide * n, wide * m, wide * warps,
        *[rows * value for value in (m, n, k, warps, split, swap, tma, second, wide)],
    )  # fmt: skip
    base = (m, n, k, warps, *own)
    zeros = (0.0,) * len(base)
    integer = base if op == "int_mm" else zeros
    mixed = base if op == "mixed_mm" else zeros
    return (*shape, *own, *flags, *crossed, *integer, *mixed)


def _log(value: float) -> float:
    return math.log2(value)
