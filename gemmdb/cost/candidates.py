"""The candidates of rung `model`: a small menu of tiles, adapted to the problem and the device."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from gemmdb.cost.data import menus
from gemmdb.cost.machine import Machine
from gemmdb.cost.work import Setting, Tile, tile_of
from gemmdb.kernels import hardware
from gemmdb.kernels.config import Config
from gemmdb.kernels.kernel import Value
from gemmdb.key.canonical import lazy
from gemmdb.key.operands import Numerics, Operand
from gemmdb.key.problem import Problem

MENU_OF = {
    "mm": "mm", "addmm": "mm", "int_mm": "int_mm", "mixed_mm": "mixed_mm", "bmm": "bmm", "scaled_mm": "scaled_mm",
}  # fmt: skip
"""The menu of each op that can be modelled."""
FITTED = ("tile", "narrow", "batch")
"""Kernels whose stages and split of K are fitted to the problem and the machine."""


@dataclass(frozen=True, eq=False)
class Choice:
    """A candidate: the `tile` that the model ranks, and the config of the menu that it comes from."""

    tile: Tile
    entry: Config

    @lazy
    def config(self) -> Config:
        """The config: the menu entry with stages and split that fit."""
        if self.entry.backend == "cutlass":
            return self.entry
        dequant = "bits" if self.tile.bits else "cast"
        own: dict[str, Value] = {"stages": self.tile.stages, "split_k": self.tile.split, "dequant": dequant}
        values = {name: own.get(name, value) for name, value in self.entry.params}
        return Config(self.entry.backend, self.entry.kernel, tuple(values.items()))


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    """A config of a menu and its tile, with stages that fit a machine. `together`: how many programs share an SM when K
    is split; 0 if K is not split or the config fixes the split. `shape`: equal for the entries of a menu that differ
    in the split of their tiles at most. `made`: the choices so far, by split."""

    config: Config
    tile: Tile
    together: int = 0
    shape: int = 0
    made: dict[int, Choice] = field(default_factory=dict)

    def choice(self, split: int) -> Choice:
        """The choice with this split of K."""
        found = self.made.get(split)
        if found is None:
            found = self.made[split] = Choice(self.tile._replace(split=split), self.config)
        return found


def choices(setting: Setting) -> Iterator[Choice]:
    """The candidates of a problem, without repeats. They may be illegal for the problem's layout."""
    menu, rows = MENU_OF[setting.problem.op], setting.problem.m
    most = next(limit for limit in menus()[menu] if rows <= limit)
    seen: set[tuple[int, int]] = set()
    # Triton casts int8 to bf16 with a few full-rate instructions; its other casts use slow conversion instructions.
    slow = setting.problem.spec.dequantises and (setting.problem.a.dtype, setting.problem.b.dtype) != ("bf16", "int8")
    for entry in _entries(menu, most, slow, setting.machine, setting.a, setting.b):
        # Where K is not whole steps, Inductor's templates mask every load. Hardly any row tells what that costs.
        if entry.config.spec.emitted and setting.problem.k % entry.tile.k:
            continue
        for split in splits(setting, entry.tile, entry.together) if entry.together else (entry.tile.split,):
            if (entry.shape, split) not in seen:
                seen.add((entry.shape, split))
                yield entry.choice(split)


@functools.lru_cache(maxsize=64)
def _entries(menu: str, most: int, slow: bool, machine: Machine, a: int, b: int) -> Sequence[_Entry]:
    """The entries of a menu that run on a machine. `slow`: whether casts of weights are slow; `a`, `b`: as in a
    Setting."""
    tiles = {config: tile_of(config) for config in map(Config.parse, menus()[menu][most])}
    # A gemv does not wait for tensor cores, so there every cast costs more than bit patterns.
    gemv = menu == "mixed_mm"
    fitted = [
        _fitted(config, tile._replace(bits=gemv if tile.kernel == "gemv" else slow), machine, a, b)
        for config, tile in tiles.items()
        if tile is not None and runs_on(tile, machine)
    ]
    shapes: dict[Tile, int] = {}
    return tuple(
        replace(entry, shape=shapes.setdefault(entry.tile._replace(split=0), len(shapes)))
        for entry in fitted
        if entry is not None
    )


def runs_on(tile: Tile, machine: Machine) -> bool:
    """Whether the arch has the instructions that the kernel uses."""
    # The copy engine came with Hopper, and CUTLASS kernels use Hopper's instructions.
    if tile.kernel == "gemm":
        return machine.capability == hardware.HOPPER
    return not tile.tma or machine.capability >= hardware.FIRST_TMA


def _fitted(config: Config, tile: Tile, machine: Machine, a: int, b: int) -> _Entry | None:
    """The entry with the stages that fit; None if too few fit."""
    stage = hardware.stage_bytes((tile.m, tile.n, tile.k), (a, b))
    if tile.kernel not in FITTED:
        fits = tile.kernel in ("gemv", "gemm") or stage * tile.stages <= machine.smem
        return _Entry(config, tile) if fits else None
    # As many programs share an SM as on Hopper, for which the menu was made, and their stages share the memory.
    grouped = hardware.by_warp_groups(tile.n if tile.swap else tile.m, tile.warps)
    together = max(hardware.SHARED_BYTES // (stage * max(tile.stages - 1 + grouped, 1)), 1)
    together = min(together, machine.warps // tile.warps)
    buffers = machine.smem // together // (stage + hardware.BARRIER_BYTES)
    stages = min(buffers + (not (grouped and machine.groups)), hardware.MAX_STAGES)
    if stages < 2:
        return None
    if tile.reduce == "none":
        return _Entry(config, tile._replace(stages=stages, split=1))
    return _Entry(config, tile._replace(stages=stages), together)


def splits(setting: Setting, tile: Tile, together: int) -> list[int]:
    """The splits of K with which `together` programs per SM fill all SMs once."""
    p = setting.problem
    tiles = p.batch * hardware.tile_count(p.m, p.n, (tile.m, tile.n))
    return hardware.splits(tiles, setting.machine.sms * together, -(-p.k // tile.k))


def alike(problem: Problem) -> Problem:
    """The problem that is ranked in place of another; the problem itself if its op is modelled, or if nothing is like
    it.

    For fp8 with scales: int8 with a scale, whose operands take as many bytes and whose matrix unit is as fast. On 52
    problems with at most 64 rows, measured with the whole menu on an H200, the best of the first 12 in this order was
    within 0.05% of the best of all (mean; 1.6% at most), and that of the first 16 was the best of all.
    """
    if not problem.scaled or problem.spec.grouped or problem.scales == "block":
        return problem
    a, b = (Operand("int8", operand.layout) for operand in (problem.a, problem.b))
    return replace(
        problem, op="int_mm", a=a, b=b, out="bf16", bias=None, fusion="scale", scales="", numerics=Numerics(acc="int32")
    )  # fmt: skip
