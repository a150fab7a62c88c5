"""Transfers a time from one size to another: it computes the part that can be computed, and only the rest is
interpolated.

`Scale` computes an expected time from the bytes, steps, waves and tiles of a config on a problem; a measured time
divided by it varies slowly with the sizes. A `ConfigGroup` holds the configs that differ only in their split of K. The
split that fills the multiprocessors at one size is wrong at another, so it is computed for each size.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gemmdb.cost import sizes
from gemmdb.cost.machine import machine
from gemmdb.cost.model import FITTED, Coefficients
from gemmdb.cost.roofline import roofline_us
from gemmdb.cost.sizes import CLUSTERED, CUTLASS_INT4, CUTLASS_STREAM
from gemmdb.cost.terms import Estimator
from gemmdb.cost.work import CUTLASS_STAGES, KERNELS, Setting, Tile, tile_of
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.cutlass.int4_stream import STAGES, STEP
from gemmdb.kernels.hardware import GROUP_ROWS, GROUP_WARPS, filling, splits, tile_count
from gemmdb.kernels.triton.int4_skinny import DEPTH, MAX_ROWS
from gemmdb.key.device import Device
from gemmdb.key.ops import SCALE_BLOCK
from gemmdb.key.problem import Problem

_SPLIT = "split_k"
_same: dict[object, Like] = {}


class Like:
    """Stands for all groups of a kernel with the same tile. It is compared by identity, as groups are."""

    __slots__ = ()


class Member(NamedTuple):
    """A config of a group, and its tile; None for one without: ATen, or a kernel that only others know."""

    config: Config
    tile: Tile | None


@dataclass(frozen=True, slots=True, eq=False)
class ConfigGroup:
    """A config without its split of K. `resident`: 0 if the split belongs to the config (no split, or the backend's own
    choice), else how many programs per multiprocessor the split gives; `config` then has a split of 2 as a placeholder.
    `like`: the same for the groups of a kernel with the same tile. `known`: its members so far, by split; 0 for the
    only one of a group with a `resident` of 0. Each group is a single object, so a lookup need not hash configs."""

    config: Config
    resident: int
    like: Like
    known: dict[int, Member] = field(default_factory=dict, repr=False)

    def member(self, split: int) -> Member:
        """The member with a split of K; 0 for the only one."""
        found = self.known.get(split)
        if found is None:
            config = _with_split(self.config, split) if split else self.config
            found = self.known[split] = Member(config, tile(config))
        return found


@dataclass(frozen=True, slots=True)
class Scale:
    """Expected times on one problem and device, up to a factor that nearby problems share. `sized`: whether the rates
    of `sizes` hold; `estimator`: None if the cost model does not know the device or the weight; `roof`: the roofline,
    if neither does."""

    problem: Problem
    device: Device
    sized: bool
    estimator: Estimator | None
    roof: float

    @classmethod
    def of(cls, problem: Problem, device: Device) -> Scale:
        """The scale of a problem; the roofline if no formula knows the device or the weight."""
        if sizes.covers(problem, device):
            return cls(problem, device, True, None, 0.0)
        known = machine(device) if problem.int4 is None else None
        if known is None:
            return cls(problem, device, False, None, roofline_us(problem, device))
        return cls(problem, device, False, Estimator.of(FITTED, Setting.shared(problem, known)), 0.0)

    def us(self, one: Member) -> float:
        """Microseconds of one call of a config. A kernel that is not modelled scales as ATen does."""
        shape = one.tile
        if self.sized:
            return sizes.us(one.config, shape, self.problem, self.device)
        if self.estimator is None:
            return self.roof
        if shape is None or shape.kernel not in KERNELS:
            return FITTED.predict_aten(self.estimator.setting)
        return self.estimator.us(shape)


def fitted() -> Coefficients:
    """The coefficients that `Scale` uses."""
    return FITTED


def group_of(config: Config, problem: Problem, device: Device) -> ConfigGroup:
    """The group of a config that ran on a problem. A split that does not fill the multiprocessors belongs to the
    config."""
    split, shape = _split(config), tile(config)
    if split < 2 or shape is None or shape.kernel in CLUSTERED:  # A cluster has up to 8 blocks, whatever fills the GPU.
        return _group(config, 0)
    tiles, resident = _tiles(shape, problem), 1
    while device.units * resident < tiles * split:
        resident *= 2
    if split not in filling(tiles, device.units * resident):
        return _group(config, 0)
    return split_group(config, resident)


def split_group(config: Config, resident: int) -> ConfigGroup:
    """The group of a config whose split of K gives `resident` programs per multiprocessor; 0 for no such split."""
    return _group(_with_split(config, 2) if resident else config, resident)


@functools.cache
def _group(config: Config, resident: int) -> ConfigGroup:
    shape = tile(config)
    like = (config.name, shape.m, shape.n, shape.swap) if shape else config.text
    return ConfigGroup(config, resident, _same.setdefault(like, Like()))


def members(group: ConfigGroup, problem: Problem, device: Device) -> Sequence[Member]:
    """The configs of a group on a problem: the splits that fill the multiprocessors once, exact or a power of two, as a
    build tries them; none if K is too short or there are too many tiles to split."""
    resident = group.resident
    shape = group.member(0).tile
    if not resident or shape is None:
        return (group.member(0),)
    found = splits(_tiles(shape, problem), device.units * resident, -(-problem.k // shape.k))
    possible = group.config.spec.params[_SPLIT]
    return [group.member(split) for split in found if split in possible]


def programs(config: Config, problem: Problem) -> int | None:
    """How many programs a config starts on a problem. None if unknown: for libraries, and for kernels that start as
    many programs as the multiprocessors hold."""
    shape = tile(config)
    if shape is None or shape.resident or (config.backend == "cutlass" and _split(config) == 0):
        return None
    return _tiles(shape, problem) * max(_split(config), 1)


@functools.lru_cache(maxsize=4096)
def tile(config: Config) -> Tile | None:
    """The tile of a config, None for one without: ATen, or a kernel that only others know."""
    ours = config.backend == "triton" and (config.spec.int4 or config.kernel == "scaled_blocks")
    if not ours and config.name not in CLUSTERED:
        return None if config == ATEN else tile_of(config)
    value = {name: int(number) for name, number in config.params if isinstance(number, int)}
    if config.kernel == "int4_skinny":
        return Tile(config.kernel, MAX_ROWS, value["block_n"], DEPTH * value["warps"], value["warps"], value["stages"])
    split = value["split_k"]
    reduce = "fixup" if split > 1 else "none"
    if ours:
        block = value["block_m"], value["block_n"], value["block_k"] * value.get("blocks", 1)
        return Tile(config.kernel, *block, value["warps"], value["stages"], split, reduce, value.get("swap", 0))
    if config.name == CUTLASS_INT4:
        block = value["tile_m"], value["tile_n"], value["tile_k"]
        return Tile(config.name, *block, GROUP_WARPS * value["groups"], CUTLASS_STAGES, split, reduce, 1, True)
    if config.name == CUTLASS_STREAM:
        depth, warps = STEP * value["warps"] * value["rows"] // value["tile_n"], value["warps"]
        return Tile(config.name, value["tile_m"], value["tile_n"], depth, warps, STAGES, split, reduce, 1, True)
    rows = value["tile_n" if value["swap"] else "tile_m"]
    warps = GROUP_WARPS * (2 if rows == 256 else rows // GROUP_ROWS)
    return Tile(
        config.name, value["tile_m"], value["tile_n"], SCALE_BLOCK, warps, CUTLASS_STAGES, split, reduce,
        value["swap"], True, cluster=(value["cluster_m"], value["cluster_n"]),
    )  # fmt: skip


def member_of(config: Config) -> Member:
    """A config with its tile."""
    return Member(config, tile(config))


def _tiles(shape: Tile, problem: Problem) -> int:
    if shape.kernel == "gemv":  # Each of its programs computes all rows.
        return problem.batch * math.ceil(problem.n / shape.n)
    return problem.batch * tile_count(problem.m, problem.n, (shape.m, shape.n))


@functools.lru_cache(maxsize=4096)
def _split(config: Config) -> int:
    return int(config.values.get(_SPLIT, 1))


@functools.lru_cache(maxsize=4096)
def _with_split(config: Config, split: int) -> Config:
    return Config.of(config.backend, config.kernel, **{**config.values, _SPLIT: split})


ATEN_GROUP = _group(ATEN, 0)
"""The group of ATen alone."""
