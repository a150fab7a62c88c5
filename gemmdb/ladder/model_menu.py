"""The candidates of rung `model`: a compact menu of tiles, made to fit the problem and the device."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gemmdb.config import Config, Value
from gemmdb.ladder.model_machine import Machine
from gemmdb.ladder.model_menus import MENUS
from gemmdb.ladder.model_work import Setting, Tile, tile_of

FAMILIES = {"mm": "mm", "addmm": "mm", "int_mm": "int_mm", "mixed_mm": "mixed_mm"}
"""Ops that share a menu."""
MENU_SHARED = 227 * 1024
"""Shared memory of an SM of the GPU that the menus' pipelines were measured on."""
MOST_STAGES, MOST_SPLIT = 8, 32


class Choice(NamedTuple):
    """A candidate: the `tile` that the model ranks, and the config of the menu that it comes from."""

    tile: Tile
    entry: Config

    @property
    def config(self) -> Config:
        """The config itself: the entry with the stages and the split that fit."""
        if self.entry.backend == "cutlass":
            return self.entry
        way = "bits" if self.tile.bits else "cast"
        own: dict[str, Value] = {"stages": self.tile.stages, "split_k": self.tile.split, "dequant": way}
        values = {name: own.get(name, value) for name, value in self.entry.params}
        return Config(self.entry.backend, self.entry.kernel, tuple(values.items()))


@dataclass(frozen=True, slots=True)
class _Entry:
    config: Config
    tile: Tile


def choices(setting: Setting) -> Iterator[Choice]:
    """The candidates of a problem, without repeats; whether each is legal for the problem's layout is not looked at."""
    family, rows = FAMILIES[setting.problem.op], setting.problem.m
    menus = MENUS[family]
    most = next(limit for limit in menus if rows <= limit)
    seen: set[Tile] = set()
    # Triton's own cast of int8 to bf16 is a few full-rate instructions; its other casts go through conversions. A gemv
    # has no tensor cores to wait for, so there they all cost more than bit patterns.
    mixed = family == "mixed_mm"
    slow = mixed and (setting.problem.a.dtype, setting.problem.b.dtype) != ("bf16", "int8")
    for entry in _entries(family, most):
        if runs_on(entry.tile, setting.machine):
            for tile in _fitted(setting, entry.tile._replace(bits=mixed if entry.tile.kernel == "gemv" else slow)):
                if tile not in seen:
                    seen.add(tile)
                    yield Choice(tile, entry.config)


@functools.lru_cache(maxsize=64)
def _entries(family: str, most: int) -> Sequence[_Entry]:
    configs = [Config.parse(text) for text in MENUS[family][most]]
    return tuple(_Entry(config, tile) for config in configs if (tile := tile_of(config)) is not None)


def runs_on(tile: Tile, machine: Machine) -> bool:
    """Whether the arch has what the kernel is made of."""
    # The copy engine came with Hopper; CUTLASS kernels are made of its instructions.
    return machine.capability == 90 if tile.kernel == "gemm" else not tile.tma or machine.capability >= 90


def _fitted(setting: Setting, tile: Tile) -> Iterator[Tile]:
    """The tile with stages that fit and, where K is split, with splits that fill the SMs once."""
    if tile.kernel not in ("tile", "narrow"):
        stage = tile.k * (tile.m * setting.a + tile.n * setting.b)
        if tile.kernel in ("gemv", "gemm") or stage * tile.stages <= setting.machine.smem:
            yield tile
        return
    stage = tile.k * (tile.m * setting.a + tile.n * setting.b)
    left = tile.n if tile.swap else tile.m
    wide = setting.machine.groups and left >= 64 and tile.warps % 4 == 0
    # As many programs share an SM as where the menu was made, and their pipelines what shared memory there is.
    grouped = int(left >= 64 and tile.warps % 4 == 0)
    together = max(MENU_SHARED // (stage * max(tile.stages - 1 + grouped, 1)), 1)
    together = min(together, setting.machine.warps // tile.warps)
    stages = min(setting.machine.smem // together // (stage + 512) + int(not wide), MOST_STAGES)
    if stages < 2:
        return
    for split in (1,) if tile.reduce == "none" else splits(setting, tile, together):
        yield tile._replace(stages=stages, split=split)


def splits(setting: Setting, tile: Tile, together: int) -> list[int]:
    """Into how many slices to cut K so that `together` programs per SM fill all SMs once: exactly, and the power of two
    nearest to that."""
    p = setting.problem
    tiles, steps = math.ceil(p.m / tile.m) * math.ceil(p.n / tile.n), math.ceil(p.k / tile.k)
    full = setting.machine.sms * together // tiles
    return [s for s in sorted({full, 1 << full.bit_length() >> 1} - {0, 1}) if s <= min(steps // 2, MOST_SPLIT)]
