"""The work of a kernel on a GPU: the bytes, steps, waves and operations of a config on a problem. They are counted and
divided by the machine's public rates, so the cost model fits times only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from gemmdb.cost.machine import Machine
from gemmdb.kernels.config import Config
from gemmdb.kernels.cutlass.rules import scheduled, warp_groups
from gemmdb.kernels.hardware import (
    GROUP_WARPS,
    MAX_RESIDENT,
    REGISTERS,
    THREAD_REGISTERS,
    WARP_THREADS,
    by_warp_groups,
    item_sizes,
    stage_bytes,
)
from gemmdb.key.layout import ITEM_SIZES
from gemmdb.key.problem import Problem

T = TypeVar("T")
KERNELS: Mapping[str, str] = {
    "tile": "tile", "gemv": "gemv", "gemm": "cutlass", "narrow": "tile", "persistent": "tile", "inductor_mm": "tile",
    "inductor_persistent_tma": "tile", "inductor_bmm": "tile", "batch": "tile",
}  # fmt: skip
"""The kernels that are modelled, each with the group of coefficients that applies; any other kernel is not modelled.
The trees number the kernels in this order, so add one at the end, and refit."""
COEFFICIENTS = (
    "launch", "wave", "output", "fixup", "second", "partial",
    "dram", "l2", "latency", "sync", "wide", "fma", "shared", "cast", "bits", "steps", "power",
)  # fmt: skip
"""The coefficients that `microseconds` takes, in order; all are positive."""
OTHER_REGISTERS = 48
"""Registers of a thread for addresses, indices and operands in flight, in kernels that multiply tiles. Of 32, 48 and
64, this value orders held-out H200 rows best."""
CUTLASS_STAGES = 4
"""CUTLASS uses as many stages as fit, which is four for most of its tiles."""


class Tile(NamedTuple):
    """A config in the terms of the cost model. `m`, `n`, `k`: the tile, one row high for a gemv; `split` of K with
    `reduce` `none`, `kernel` or `fixup`; `tma`: the copy engine loads the tiles; `bits`, `mask`, `stagger`, `swap`,
    `resident`: the parameters of these names; `cluster` of tiles along M and N, and `band`: CUTLASS's swizzle.
    `registers` per thread and bytes of `shared` memory per program: those of the compiled kernel, or 0 to estimate
    them."""

    kernel: str
    m: int
    n: int
    k: int
    warps: int
    stages: int
    split: int = 1
    reduce: str = "none"
    swap: int = 0
    tma: bool = False
    bits: bool = False
    mask: bool = False
    stagger: int = 0
    resident: int = 0
    cluster: tuple[int, int] = (1, 1)
    band: int = 1
    registers: int = 0
    shared: int = 0

    @property
    def group(self) -> str:
        """Which coefficients apply: `tile`, `gemv` or `cutlass`."""
        return KERNELS[self.kernel]


def tile_of(config: Config) -> Tile | None:
    """The Tile of a config; None for a kernel that is not modelled."""
    value: Mapping[str, Any] = config.values
    name, split = config.kernel, value.get("split_k", 1)
    if config.name == "cutlass:gemm":
        warps = GROUP_WARPS * warp_groups(config)
        return Tile(
            name, value["tile_m"], value["tile_n"], value["tile_k"], warps, CUTLASS_STAGES, max(split, 1),
            "none" if split == 1 else "fixup", value["swap"], True, cluster=(value["cluster_m"], value["cluster_n"]),
            band=value["swizzle"],
        )  # fmt: skip
    if config.backend != "triton" or name not in KERNELS:
        return None
    rows = 1 if name == "gemv" else value["block_m"]
    return Tile(
        name, rows, value["block_n"], value["block_k"], value["warps"], value["stages"], split,
        value.get("reduce", "fixup" if split > 1 else "none"), value.get("swap", 0),
        config.spec.maps(config),
        value.get("dequant") == "bits", value.get("rows") == "mask", value.get("stagger", 0), value.get("resident", 0),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setting:
    """A problem on a machine: what all configs share. `a`, `b`: bytes of an element of the operands. `dram`, `output`:
    microseconds for reading the operands once and for writing the output. `rate`: the speed of the tensor cores on the
    problem's dtype relative to 16-bit operands. `batch`: how many matrices. `memo`: what the model computed for it."""

    problem: Problem
    machine: Machine
    a: int
    b: int
    dram: float
    output: float
    rate: float
    batch: int = 1
    memo: dict[object, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, problem: Problem, machine: Machine) -> Setting:
        """The setting of a problem."""
        a, b = item_sizes(problem.a, problem.b)
        output = problem.batch * problem.m * problem.n * ITEM_SIZES[problem.out]
        read = (problem.bytes - output) / machine.dram
        return cls(problem, machine, a, b, read, output / machine.dram, 2 / a, problem.batch)

    @classmethod
    def shared(cls, problem: Problem, machine: Machine) -> Setting:
        """The setting of a problem. The steps of a lookup get the same object, and share what it remembers."""
        known = _settings.get(problem.text)
        if known is None or known.machine is not machine:
            if len(_settings) >= _SHARED:
                _settings.clear()
            known = _settings[problem.text] = cls.of(problem, machine)
        return known

    def once(self, key: object, compute: Callable[[], T]) -> T:
        """What `compute` returns, computed once for this setting."""
        try:
            found: T = self.memo[key]
        except KeyError:
            found = self.memo[key] = compute()
        return found

    def resized(self, m: int, n: int, k: int) -> Setting:
        """The setting of the problem at other sizes."""
        return Setting.of(self.problem.resized(m, n, k), self.machine)


_SHARED = 256
_settings: dict[str, Setting] = {}
"""The settings of the latest problems, by their texts."""


class Work(NamedTuple):
    """The work of one config on the machine, as floats or arrays: microseconds at public rates, or counts.

    `dram`: operands once; `l2`: all reads of tiles; `latency`: trips to memory that nothing hides, in the busiest
    program; `waves` of programs; `sync`, `wide`, `fma`: operations by `mma.sync`, warp-group and fp32 instructions;
    `shared`: operands from shared memory to registers; `cast`, `bits`: dequantised weights; `steps` along K; `output`;
    `fixup`, `second`: 1 if K is split and reduced that way; `partial`: partial sums written and read. For ATen,
    `second` counts the kernels around the GEMM, and `partial` is what these move.
    """

    dram: Any
    l2: Any
    latency: Any
    waves: Any
    sync: Any
    wide: Any
    fma: Any
    shared: Any
    cast: Any
    bits: Any
    steps: Any
    output: Any
    fixup: Any
    second: Any
    partial: Any


def work(setting: Setting, tile: Tile) -> Work:
    """The Work of a tile in a setting."""
    p, machine = setting.problem, setting.machine
    gemv = tile.kernel == "gemv"
    rows, columns = grid(p, tile)
    steps = math.ceil(p.k / tile.k / tile.split)
    programs = setting.batch * columns * tile.split * (1 if gemv else rows)
    height = p.m if gemv else tile.m
    wide = is_wide(setting, tile)
    waves = math.ceil(programs / (machine.sms * residency(setting, tile, wide)))
    # Programs on one SM share its cores; the fullest SM runs this many one after the other.
    turns = math.ceil(programs / machine.sms) * steps
    on_cores = 2.0 * height * tile.n * tile.k * turns / setting.rate
    weights = tile.n * tile.k * turns / (64 * machine.clock) if p.spec.dequantises else 0.0
    stage = stage_bytes((height, tile.n, tile.k), (setting.a, setting.b))
    return Work(
        setting.dram,
        stage * steps * programs / machine.l2,
        waves * steps / max(tile.stages - 1, 1),
        waves,
        0.0 if wide or gemv else on_cores / machine.sync,
        on_cores / machine.tensor if wide else 0.0,
        on_cores * setting.rate / machine.fma if gemv else 0.0,
        0.0 if wide or gemv else registers_read(setting, tile) * turns / (128 * machine.clock),
        0.0 if tile.bits else weights,
        weights if tile.bits else 0.0,
        waves * steps * 1000.0 / machine.clock,
        setting.output,
        float(tile.reduce == "fixup"),
        float(tile.reduce == "kernel"),
        8.0 * setting.batch * p.m * p.n * tile.split / machine.l2 if tile.split > 1 else 0.0,
    )


def grid(problem: Problem, tile: Tile) -> tuple[int, int]:
    """The tiles of a matrix along M and N that are computed, with those beyond the output that CUTLASS adds."""
    tiles = math.ceil(problem.m / tile.m), math.ceil(problem.n / tile.n)
    return tiles if tile.cluster == (1, 1) and tile.band == 1 else scheduled(tiles, tile.cluster, tile.band)


def is_wide(setting: Setting, tile: Tile) -> bool:
    """Whether the machine multiplies the tile with warp-group instructions."""
    return setting.machine.groups and by_warp_groups(tile.n if tile.swap else tile.m, tile.warps)


def residency(setting: Setting, tile: Tile, wide: bool) -> int:
    """How many programs share an SM, limited by shared memory, warps and registers."""
    machine, threads = setting.machine, WARP_THREADS * tile.warps
    if tile.kernel == "gemm":
        return 1
    if tile.kernel == "gemv":
        loads = tile.n * tile.k * setting.b * tile.stages // 4 + tile.n * tile.k * setting.problem.m
        shared, registers = 1024, loads // threads + 40
    else:
        stage = stage_bytes((tile.m, tile.n, tile.k), (setting.a, setting.b))
        shared = stage * (tile.stages if wide else max(tile.stages - 1, 1)) + 1024
        registers = tile.m * tile.n // threads + OTHER_REGISTERS
        if setting.problem.spec.dequantises:  # A weight tile is dequantised at once.
            registers += tile.n * tile.k // 2 // threads
    shared, registers = tile.shared + 1024 if tile.shared else shared, tile.registers or registers
    fits = min(
        machine.smem // shared, machine.warps // tile.warps, REGISTERS // (min(registers, THREAD_REGISTERS) * threads)
    )
    if tile.kernel in ("persistent", "inductor_persistent_tma"):
        fits = min(fits, tile.resident or 1)
    return max(1, min(fits, MAX_RESIDENT))


def registers_read(setting: Setting, tile: Tile) -> float:
    """Bytes that the warps of a program read from shared memory in a step. Without warp groups, each warp reads its own
    share of the tiles, so one operand is read several times."""
    along = max(1, min(tile.warps, tile.n // 16))
    return tile.k * (tile.n * setting.b * max(1, tile.warps // along) + tile.m * setting.a * along)
