"""Candidates on an NVIDIA GPU: ATen, and our Triton kernels over tiles, splits of K, pipelines and ways to load."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product

from gemmdb.generators.interfaces.backend import Candidate
from gemmdb.generators.interfaces.effort import Effort
from gemmdb.generators.measure.cuda import cutlass_menu, inductor_menu, menu
from gemmdb.generators.measure.cuda.likely import likely
from gemmdb.kernels import hardware
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.legality_fp8 import unmultiplied
from gemmdb.kernels.registry import INDUCTOR_ALONE, KERNELS
from gemmdb.kernels.triton.legality import illegal, turned_bytes, warpgroup
from gemmdb.key.device import Device
from gemmdb.key.layout import ITEM_SIZES
from gemmdb.key.problem import Problem

MOST_GEMV_ROWS = 2
"""With more rows the matrix unit does the same work for less."""
MOST_WARPS = 32
"""Warps of all the blocks that are to share a multiprocessor."""
BEYOND = 300
"""Configs of the whole space that breadth 2 tries after the menu."""


@dataclass(frozen=True)
class CudaSpace:
    """The space of a GPU. `breadth` 0 tries what is likely of the menu (`likely`), 1 also what Inductor itself makes of
    a product (where the menu has nothing, that is tried at any breadth), 2 all of the menu and a sample of everything
    besides.

    `cutlass`: from breadth 1 on also the menu of our CUTLASS kernel, for a machine that can compile it.
    """

    cutlass: bool = True

    def candidates(self, problem: Problem, device: Device, effort: Effort) -> Sequence[Candidate]:
        """ATen, then legal configs only: the illegal ones of a product space tell nothing. Where there is nothing to
        multiply, ATen alone; of fp8 operands that torch does not multiply too, and it is illegal then."""
        if problem.op == "scaled_mm" and (reason := unmultiplied(problem, device)):
            return [Candidate(ATEN, reason)]
        if 0 in (problem.m, problem.n, problem.k):
            return [Candidate(ATEN)]
        whole = from_menu(problem, device)
        tried = likely(whole, problem, device) if effort.breadth < 2 else whole
        ours = [Candidate(config, estimated=len(tried) < len(whole)) for config in tried]
        others = self._others(problem, device, effort) if effort.breadth or not whole else []
        beyond = _beyond(problem, device, {*tried, *others}) if effort.breadth == 2 else []
        return [Candidate(ATEN), *ours, *map(Candidate, [*others, *beyond])]

    def _others(self, problem: Problem, device: Device, effort: Effort) -> list[Config]:
        takes = self.cutlass and problem.op in KERNELS["cutlass", "gemm"].ops
        ours = cutlass_menu.configs(problem, device, effort.breadth == 2) if takes else []
        return [*ours, *inductor_menu.configs(problem, device)]


def _beyond(problem: Problem, device: Device, known: Collection[Config]) -> list[Config]:
    return list(islice((config for config in everything(problem, device) if config not in known), BEYOND))


def from_menu(problem: Problem, device: Device) -> list[Config]:
    """The legal configs of the menu for a problem, in its order; none for INDUCTOR_ALONE."""
    if problem.op in INDUCTOR_ALONE:
        return []
    found: dict[Config, None] = {}
    if problem.m <= MOST_GEMV_ROWS and problem.op != "int_mm":
        way = "bits" if problem.op == "mixed_mm" else "cast"
        for k, n, warps, stages in menu.GEMV:
            found[gemv(n, k, way, warps, stages)] = None
    found |= dict.fromkeys(_narrow(problem, device))
    if problem.op == "scaled_mm":
        return _legal(found, problem, device)
    found |= dict.fromkeys(_persistent(problem))
    for entry in menu.tiles(problem.op, problem.m):
        for resident, load, swap in product(entry.resident, entry.loads, entry.swaps):
            shape = Shape(entry.m, entry.n, _deep(problem, entry.k), entry.warps, resident)
            found |= dict.fromkeys(_split(problem, device, shape, load, swap, (_way(problem),), idle=False))
    return _legal(found, problem, device)


def everything(problem: Problem, device: Device) -> list[Config]:
    """All legal configs of the product space, in a fixed order that favours none; none for INDUCTOR_ALONE."""
    if problem.op in INDUCTOR_ALONE:
        return []
    tiles = list(_tiles(problem, device))
    found = dict.fromkeys((*_gemvs(problem), *tiles, *_narrows(problem, tiles), *_persistents(problem, tiles)))
    legal = _legal(found, problem, device)
    return sorted(legal, key=lambda config: hashlib.sha256(config.text.encode()).digest())


def _legal(configs: Iterable[Config], problem: Problem, device: Device) -> list[Config]:
    return [config for config in configs if not illegal(config, problem, device)]


@dataclass(frozen=True)
class Shape:
    """A tile and how it is run; `resident`: blocks that are to share a multiprocessor."""

    m: int
    n: int
    k: int
    warps: int
    resident: int


def gemv(n: int, k: int, way: str, warps: int, stages: int) -> Config:
    """A config of the gemv kernel."""
    return Config.of("triton", "gemv", block_n=n, block_k=k, dequant=way, warps=warps, unroll=1, stages=stages)


def _narrow(problem: Problem, device: Device) -> Iterator[Config]:
    for entry in menu.narrow(problem.op, problem.m):
        for resident, swap in product(entry.resident, entry.swaps):
            shape = Shape(entry.m, entry.n, _deep(problem, entry.k), entry.warps, resident)
            for tile in _split(problem, device, shape, "pointer", swap, (_way(problem),), idle=False):
                if tile.values["reduce"] != "kernel":
                    yield from (_narrowed(tile, rows, stagger) for rows, stagger in entry.modes)


def _narrowed(tile: Config, rows: str, stagger: int) -> Config:
    """The narrow kernel with the parameters that it shares with a tile."""
    same = {name: value for name, value in tile.params if name not in ("group_m", "reduce", "load")}
    return Config.of("triton", "narrow", **same, rows=rows, stagger=stagger)


def _persistent(problem: Problem) -> Iterator[Config]:
    entries = menu.persistent(problem.op, problem.m)
    for m, n, k, warps, stages, resident in entries:
        # The weight first suits few rows; the first shape is the one that is tried both ways.
        swaps = (0, 1) if (m, n, k) == entries[0][:3] and problem.m <= 512 and problem.op != "mixed_mm" else (0,)
        for swap in swaps:
            yield Config.of(
                "triton", "persistent", block_m=m, block_n=n, block_k=_deep(problem, k), group_m=hardware.BAND_ROWS,
                swap=swap, dequant=_way(problem), resident=resident, warps=warps, stages=stages,
            )  # fmt: skip


def _deep(problem: Problem, k: int) -> int:
    """BLOCK_K of the menu, which is for elements of 2 bytes (1 byte for int_mm, scaled_mm), in as many bytes."""
    return k * 2 // ITEM_SIZES[problem.a.dtype] if problem.a.dtype == "fp32" else k


def _way(problem: Problem) -> str:
    # Triton's own cast of int8 to bf16 is a few full-rate instructions; its other casts go through conversions.
    pair = (problem.a.dtype, problem.b.dtype)
    return "bits" if problem.op == "mixed_mm" and pair != ("bf16", "int8") else "cast"


def _ways(problem: Problem) -> tuple[str, ...]:
    return ("cast", "bits") if problem.op == "mixed_mm" else ("cast",)


def _gemvs(problem: Problem) -> Iterator[Config]:
    if problem.m > MOST_GEMV_ROWS or problem.op == "int_mm":
        return
    for n, k, way, warps, stages in product(
        (2, 4, 8, 16), (128, 256, 512, 1024, 2048), _ways(problem), (1, 2, 4), (1, 3, 5, 8)
    ):
        if 16 <= n * k * problem.m // (warps * 32) <= 64 and k <= problem.k:
            yield gemv(n, k, way, warps, stages)


def _tiles(problem: Problem, device: Device) -> Iterator[Config]:
    # A dequantised weight does not reach the matrix unit from registers in wide enough pieces when it comes first.
    swaps = (0,) if problem.op == "mixed_mm" else (0, 1)
    deep = (64, 128, 256, 512) if problem.op != "mm" else (32, 64, 128, 256)
    for m, n, k, swap, load in product(_rows(problem.m), (16, 32, 64, 128, 256), deep, swaps, ("pointer", "tma")):
        if k > 2 * problem.k or (swap and n < hardware.GROUP_ROWS) or m * n > 256 * 128:
            continue
        for warps, resident in product(_warps(problem, (m, n, k), swap), (1, 2, 4, 8)):
            if warps * resident <= MOST_WARPS:
                yield from _split(problem, device, Shape(m, n, k, warps, resident), load, swap, _ways(problem))


def _narrows(problem: Problem, tiles: list[Config]) -> Iterator[Config]:
    if problem.m > hardware.SKINNY_ROWS:
        return
    for tile in tiles:
        if tile.values["load"] == "pointer" and tile.values["reduce"] != "kernel":
            yield from (_narrowed(tile, rows, stagger) for rows, stagger in product(("wrap", "mask"), (0, 1)))


def _persistents(problem: Problem, tiles: list[Config]) -> Iterator[Config]:
    for tile in tiles:
        if problem.m >= menu.FEWEST_PERSISTENT_ROWS and tile.values["load"] == "tma" and tile.values["split_k"] == 1:
            same = {name: value for name, value in tile.params if name not in ("split_k", "reduce", "load")}
            for resident in (1, 2):
                # The epilogue takes some of the shared memory that the pipeline of a tile may have whole.
                stages = max(int(tile.values["stages"]) - 1, 1)
                yield Config.of("triton", "persistent", **{**same, "resident": resident, "stages": stages})


def _rows(m: int) -> list[int]:
    """Tile heights: the power of two that holds M, the one below it, and what suits a large M."""
    whole = min(max(16, 1 << (m - 1).bit_length()), 256)
    return [height for height in (whole, whole // 2, whole // 4) if height >= (64 if m > 128 else 16)]


def _warps(problem: Problem, block: tuple[int, int, int], swap: int) -> list[int]:
    m, n, k = block
    left = n if swap else m
    if left >= hardware.GROUP_ROWS and (problem.op != "mixed_mm" or m >= 128):
        one = hardware.GROUP_WARPS
        return [one] if left < 2 * hardware.GROUP_ROWS else [one, 2 * one]
    # Bytes of weight that a thread takes to registers in one step.
    size = ITEM_SIZES[problem.b.dtype]
    return [warps for warps in (1, 2, 4, 8) if 32 <= n * k * size // (warps * 32) <= 512 and n // warps >= 8]


def _stages(problem: Problem, device: Device, shape: Shape, load: str, swap: int) -> int:
    """The stages that fit when the blocks share a multiprocessor, at most MOST_STAGES; 0 if none does."""
    stage = hardware.stage_bytes((shape.m, shape.n, shape.k), hardware.item_sizes(problem.a, problem.b))
    room = hardware.shared_bytes(device) // shape.resident
    if load == "tma":
        room -= turned_bytes(problem, (shape.m, shape.n, shape.k), swap)
    buffers = max(room, 0) // (stage + 512)
    grouped = warpgroup(problem, shape.n if swap else shape.m, shape.warps)
    return min(hardware.MOST_STAGES, buffers + (0 if grouped else 1)) if buffers else 0


def _split(
    problem: Problem, device: Device, shape: Shape, load: str, swap: int, ways: tuple[str, ...], idle: bool = True
) -> Iterator[Config]:
    """The configs of a shape: without a split of K, and with those that fill the multiprocessors once.

    `idle`: also without a split where that leaves over half of the multiprocessors without work.
    """
    stages = _stages(problem, device, shape, load, swap)
    tiles = hardware.tile_count(problem.m, problem.n, (shape.m, shape.n))
    splits = hardware.splits(tiles, device.units * shape.resident, -(-problem.k // shape.k))
    whole = [(1, "none")] if idle or not splits or 2 * tiles >= device.units else []
    if stages < 2:
        return
    for way, (split, reduce) in product(ways, [*whole, *product(splits, ("fixup", "kernel"))]):
        yield Config.of(
            "triton", "tile", block_m=shape.m, block_n=shape.n, block_k=shape.k, group_m=hardware.BAND_ROWS,
            split_k=split, reduce=reduce, swap=swap, load=load, dequant=way, warps=shape.warps, stages=stages,
        )  # fmt: skip
