"""The cost model for a lookup: the times of `Coefficients.predict`, with all that does not depend on the sizes computed
once for each tile.

A lookup predicts the times of some fifty tiles. Most of what a time is made of depends on the tile, op, dtypes and
machine alone. `Terms` holds that, so that a tile costs a lookup two microseconds instead of twenty.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from math import exp, log2
from typing import TypeAlias

from gemmdb.cost.model import Coefficients
from gemmdb.cost.work import COEFFICIENTS, Setting, Tile, is_wide, registers_read, residency, work
from gemmdb.kernels.cutlass.rules import scheduled
from gemmdb.kernels.hardware import stage_bytes

_KEPT = 4096
"""Tiles of one kind of problem whose Terms are kept."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a tile. With `steps` along K of a program, `waves` of programs, and `turns`: the steps that the
    fullest multiprocessor computes one after the other. The slots of a class are read in a fifth of the time that the
    fields of a named tuple take, so `m`, `n`, `split` and `depth` (K of a step, of all slices) repeat the tile's.

    `units`: programs that the machine holds at once. `fixed`: microseconds of every call, `wave`: of each wave. `sums`:
    of writing and reading the partial sums of an element of C. `l2`: of a step of a program; `latency` and `step`: of a
    step of a wave; `cores`: of a turn. `level`, `row`, `log_wave`: the logarithm of the correction, and what it gets
    for a doubling of M and of the waves.

    Without rates, for the trees: `stage`: bytes of a step; `operations` and bytes read into `registers` of a turn,
    `weights` dequantised in it, and the `speed` of the operations.
    """

    tile: Tile
    m: int
    n: int
    split: int
    depth: int
    group: str
    gemv: bool
    plain: bool
    units: int
    fixed: float
    wave: float
    sums: float
    l2: float
    latency: float
    step: float
    cores: float
    level: float
    row: float
    log_wave: float
    stage: int
    operations: float
    registers: float
    weights: int
    speed: float


Counts: TypeAlias = tuple[int, int, int, int, int, int]
"""What a tile does on a problem: rows and columns of tiles, programs, steps along K of each, waves, and turns."""


@dataclass(frozen=True, slots=True)
class _Group:
    """What the tiles of a group of kernels share on one problem: the `level` of the logarithm, microseconds of the
    `output`, those of the `stream` of the operands to the power `power`, which says how far times overlap."""

    level: float
    output: float
    stream: float
    power: float


@dataclass(frozen=True, slots=True)
class Estimator:
    """The times of many tiles on one problem, equal to those of `Coefficients.predict` up to rounding. `rows`: the
    doublings of M that count. `kept`: the Terms of the problem's kind."""

    fitted: Coefficients
    setting: Setting
    rows: float
    kept: dict[tuple[Tile, int], Terms]
    groups: dict[str, _Group] = field(default_factory=dict)

    @classmethod
    def of(cls, fitted: Coefficients, setting: Setting) -> Estimator:
        """The estimator of a setting, made once."""

        def made() -> Estimator:
            p = setting.problem
            kept = _kind(fitted, setting.machine, p.op, setting.a, setting.b)
            if len(kept) > _KEPT:
                kept.clear()
            return cls(fitted, setting, min(log2(max(p.m, 1)), 10.0), kept)

        return setting.once((fitted, "estimator"), made)

    def terms(self, tile: Tile) -> Terms:
        """The Terms of a tile."""
        # A program of a gemv computes all rows.
        key = tile, self.setting.problem.m if tile.kernel == "gemv" else 0
        found = self.kept.get(key)
        if found is None:
            found = self.kept[key] = _terms(self.fitted, self.setting, tile)
        return found

    def us(self, tile: Tile) -> float:
        """Microseconds of a tile."""
        terms = self.terms(tile)
        return self.of_counts(terms, self.counts(terms))

    def counts(self, terms: Terms) -> Counts:
        """What a tile does."""
        p = self.setting.problem
        rows, columns = -(-p.m // terms.m), -(-p.n // terms.n)
        if not terms.plain:
            rows, columns = scheduled((rows, columns), terms.tile.cluster, terms.tile.band)
        steps = -(-p.k // terms.depth)
        programs = self.setting.batch * columns * terms.split * (1 if terms.gemv else rows)
        turns = -(-programs // self.setting.machine.sms) * steps
        return rows, columns, programs, steps, -(-programs // terms.units), turns

    def of_counts(self, terms: Terms, counts: Counts) -> float:
        """Microseconds of a tile that does this."""
        group = self.groups.get(terms.group)
        if group is None:
            group = self.groups[terms.group] = self._group(terms.group)
        _, _, programs, steps, waves, turns = counts
        power, held = group.power, waves * steps
        parts = (
            group.stream + (terms.l2 * (steps * programs)) ** power + (terms.latency * held) ** power
            + (terms.cores * turns + terms.step * held) ** power
        )  # fmt: skip
        us = terms.fixed + group.output + terms.wave * waves + parts ** (1 / power)
        if terms.sums:
            us += terms.sums * self.setting.batch * self.setting.problem.m * self.setting.problem.n
        log = group.level + terms.level + terms.row * self.rows
        if terms.log_wave:
            log += terms.log_wave * log2(waves)
        return float(us * exp(log))

    def _group(self, name: str) -> _Group:
        rates, setting = self.fitted.rates[name], self.setting
        output, dram, power = rates[2], rates[6], rates[16]
        return _Group(
            self.fitted.level(setting, name), output * setting.output, float((dram * setting.dram) ** power), power
        )


@functools.lru_cache(maxsize=64)
def _kind(fitted: Coefficients, machine: object, op: str, a: int, b: int) -> dict[tuple[Tile, int], Terms]:
    """The Terms that are kept for a kind of problems."""
    return {}


def _terms(fitted: Coefficients, setting: Setting, tile: Tile) -> Terms:
    """The Terms of a tile. The Work of a GEMM of one element is that of one program, step, wave and turn."""
    gemv, machine = tile.kernel == "gemv", setting.machine
    one = replace(setting.resized(setting.problem.m if gemv else 1, 1, 1), batch=1)
    w = work(one, tile._replace(cluster=(1, 1), band=1, split=1))
    c = dict(zip(COEFFICIENTS, fitted.rates[tile.group], strict=True))
    level, row, log_wave = fitted.slopes(one, tile, w)
    wide = is_wide(setting, tile)
    return Terms(
        tile, tile.m, tile.n, tile.split, tile.k * tile.split,
        tile.group, gemv, tile.cluster == (1, 1) and tile.band == 1,
        machine.sms * residency(setting, tile, wide),
        c["launch"] + c["fixup"] * (tile.reduce == "fixup") + c["second"] * (tile.reduce == "kernel"), c["wave"],
        c["partial"] * 8.0 * tile.split / machine.l2 if tile.split > 1 else 0.0,
        c["l2"] * w.l2, c["latency"] * w.latency, c["steps"] * w.steps,
        sum(c[name] * getattr(w, name) for name in ("sync", "wide", "fma", "shared", "cast", "bits")),
        level, row, log_wave, *_raw(setting, tile, wide),
    )  # fmt: skip


def _raw(setting: Setting, tile: Tile, wide: bool) -> tuple[int, float, float, int, float]:
    """The terms without rates."""
    p, machine, gemv = setting.problem, setting.machine, tile.kernel == "gemv"
    height = p.m if gemv else tile.m
    stage, operations = stage_bytes((height, tile.n, tile.k), (setting.a, setting.b)), 2.0 * height * tile.n * tile.k
    return (
        stage, operations if gemv else operations / setting.rate,
        0 if wide or gemv else registers_read(setting, tile), tile.n * tile.k if p.spec.dequantises else 0,
        machine.fma if gemv else machine.tensor if wide else machine.sync,
    )  # fmt: skip
