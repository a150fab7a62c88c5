"""How the times of kernels that the cost model does not rank grow with the sizes: those of weights with groups and of
fp8 with block scales, and ATen's for these. `transfer.Scale` divides by them what was measured at other sizes, so a
factor that is the same at all sizes does not matter.

The programs of a kernel multiply tiles step by step along K. A formula counts programs, waves, steps and bytes; its ten
rates for each kernel are fitted to rows of an H200 (`gemmdb.generators.fit.sizes`). `sizes.json` has the mean error of
each, beside that of the roofline.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gemmdb.cost import data
from gemmdb.cost.machine import machine
from gemmdb.cost.work import OTHER_REGISTERS, Tile
from gemmdb.kernels.aten import DEQUANTISED
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.cutlass.int4_stream import STEP, resident_warps
from gemmdb.kernels.hardware import MAX_RESIDENT, REGISTERS, THREAD_REGISTERS, WARP_THREADS, tile_count
from gemmdb.kernels.triton.int4_skinny import COLUMNS_OF_WARP, FEW_ROWS
from gemmdb.key.device import Device
from gemmdb.key.int4 import PACKED
from gemmdb.key.ops import SCALE_BLOCK
from gemmdb.key.problem import Problem

PRODUCTS, NUMBERS, BYTES = 2**19, 2**13, 10**6
"""The units of counts: multiplications of a tile of 64 x 64 x 128, numbers in one of 64 x 128, and a megabyte."""
EXPANDED, TILED, BLOCKS = "aten expanded", "aten tiled", "aten blocks"
"""Rates of ATen: for a weight that it expands to 16 bits first, for a tiled one, and for block scales."""
_ATEN_ROWS = 64
_ATEN_SPLITS_K = 6144
"""With block scales, ATen splits a K of at least this in two, if it has up to 64 rows and no more tiles than half of
the multiprocessors: 64 rows of N = 1536 and K = 7168 take an H200 16.5 us, and 96 rows 22.2."""
_MULTIPROCESSORS = 132
"""Those of the GPU that the rates are fitted to, on which ATen's work is assumed to be even."""
CUTLASS_BLOCKS, CUTLASS_INT4, CUTLASS_STREAM = "cutlass:scaled_blocks", "cutlass:int4", "cutlass:int4_stream"
CLUSTERED = (CUTLASS_BLOCKS, CUTLASS_INT4, CUTLASS_STREAM)
"""The CUDA kernels whose blocks split K within a cluster. Blocks of the first two take all of a multiprocessor's shared
memory."""
_ONE_BYTE = ("groupwise", "scaled_blocks", CUTLASS_BLOCKS)
"""Kernels whose weight has a byte for each number; others have four bits."""


class Rates(NamedTuple):
    """Microseconds of a call: of a `launch`, a `wave` of programs, a step along K (`latency`), and a unit of products,
    of weights and of activations in each multiprocessor; of a megabyte of the weight from memory (`stream`), and how
    far that overlaps with the rest; of a split of K (`reduce`), and of what its programs write (`partial`)."""

    launch: float
    wave: float
    latency: float
    products: float
    weights: float
    activations: float
    stream: float
    overlap: float
    reduce: float
    partial: float


class Counts(NamedTuple):
    """What a config does on a problem: numbers, or arrays of them. `waves` of programs; `steps` along K of all waves;
    `products`, `weights` and `activations` of the fullest multiprocessor, in PRODUCTS and NUMBERS; `megabytes` of the
    weight; `splits`: 1 if K is split, else 0; `partial`: sums that the programs of the fullest multiprocessor write, in
    2 * NUMBERS."""

    waves: Any
    steps: Any
    products: Any
    weights: Any
    activations: Any
    megabytes: Any
    splits: Any
    partial: Any


RATES: Mapping[str, Rates] = {name: Rates(*values) for name, values in data.sizes()["rates"].items()}
"""By kernel, and those of ATen by the names above."""
CAPABILITIES: Sequence[int] = tuple(data.sizes()["capabilities"])
"""Compute capabilities of the GPUs whose rows the rates are fitted to."""


def microseconds(rates: Rates, counts: Counts) -> Any:
    """Return the time of a call, up to a factor."""
    cores = (
        counts.steps * rates.latency
        + counts.products * rates.products
        + counts.weights * rates.weights
        + counts.activations * rates.activations
    )
    power = 1 + rates.overlap
    body = (cores**power + (counts.megabytes * rates.stream) ** power) ** (1 / power)
    split = counts.splits * rates.reduce + counts.partial * rates.partial
    return rates.launch + counts.waves * rates.wave + body + split


def covers(problem: Problem, device: Device) -> bool:
    """Return whether the rates hold: for kernels of this module, on whole GPUs of the archs that they are fitted to."""
    known = machine(device) if concerns(problem) else None
    return known is not None and known.capability in CAPABILITIES


def concerns(problem: Problem) -> bool:
    """Return whether the kernels of a problem are those of this module."""
    return problem.int4 is not None or (problem.scales == "block" and not problem.spec.grouped)


def us(config: Config, tile: Tile | None, problem: Problem, device: Device) -> float:
    """Return the microseconds of a config, up to a factor. `tile`: its tile, None for ATen and its like."""
    if tile is not None and tile.kernel in RATES:
        return float(microseconds(RATES[tile.kernel], of_tile(tile, problem, device)))
    name = aten_of(problem, config)
    return float(microseconds(RATES.get(name, RATES[EXPANDED]), of_aten(problem, device, config)))


def aten_of(problem: Problem, config: Config = ATEN) -> str:
    """Return the name of ATen's rates: for a weight that is expanded, those of its packing and zero points."""
    own = problem.int4
    if own is None:
        return BLOCKS
    if own.inner:
        return f"{EXPANDED}, tiled" if config.spec is DEQUANTISED else TILED
    return f"{EXPANDED}, {own.packing} {own.zeros}"


def of_aten(problem: Problem, device: Device, config: Config = ATEN) -> Counts:
    """Return what ATen does: it expands the weight and multiplies whole tiles of rows. It multiplies a tiled weight row
    by row while it reads it. With block scales, it has tiles of its own."""
    if aten_of(problem, config) == BLOCKS:
        return of_tile(_aten_tile(problem, device), problem, device)
    numbers = problem.n * problem.k
    if aten_of(problem, config) == TILED:
        products = problem.m * numbers / (_MULTIPROCESSORS * PRODUCTS)
        return Counts(0, 0, products, 0, 0, numbers / (2 * BYTES), 0, 0)
    products = math.ceil(problem.m / _ATEN_ROWS) * _ATEN_ROWS * numbers / (_MULTIPROCESSORS * PRODUCTS)
    return Counts(0, 0, products, numbers / (_MULTIPROCESSORS * NUMBERS), 0, 0, 0, 0)


def _aten_tile(problem: Problem, device: Device) -> Tile:
    """Return ATen's tile with block scales. With up to one tile for each multiprocessor, the time does not depend on
    their number."""
    tiles = tile_count(problem.m, problem.n, (128, 128))
    splits = problem.m <= _ATEN_ROWS and problem.k >= _ATEN_SPLITS_K and 2 * tiles <= device.units
    return Tile("scaled_blocks", 128, 128, SCALE_BLOCK, 8, 4, split=2 if splits else 1)


def of_tile(tile: Tile, problem: Problem, device: Device) -> Counts:
    """Return what a tile does on a problem."""
    skinny = tile.kernel == "int4_skinny"
    rows = (FEW_ROWS if problem.m <= FEW_ROWS else tile.m) if skinny else tile.m
    again = _reads_again(tile, problem)
    tiles = math.ceil(problem.n / tile.n) if skinny else tile_count(problem.m, problem.n, (tile.m, tile.n))
    programs = tiles * tile.split
    steps = math.ceil(math.ceil(problem.k / tile.k) / tile.split)
    resident = _resident(tile, rows, device)
    full, rest = divmod(programs, device.units * resident)
    turns = steps * (full * resident + math.ceil(rest / device.units))
    split = int(tile.split > 1)
    return Counts(
        full + (rest > 0),
        steps * (full + (rest > 0)),
        turns * rows * tile.n * tile.k / PRODUCTS,
        turns * again * tile.n * tile.k / NUMBERS,
        turns * rows * tile.k / NUMBERS,
        again * problem.n * problem.k * _bytes(tile) / BYTES,
        split,
        split * tile.split * rows * tile.n * math.ceil(tiles / device.units) / (2 * NUMBERS),
    )


def _reads_again(tile: Tile, problem: Problem) -> int:
    """Return how many programs read each word of the weight: those with half of its columns read all of them."""
    packing = PACKED.get(problem.int4.packing) if problem.int4 is not None else None
    halves = tile.kernel == "int4_skinny" and packing is not None and packing.packed == "n"
    return 2 if halves and tile.n < COLUMNS_OF_WARP else 1


def _bytes(tile: Tile) -> float:
    return 1.0 if tile.kernel in _ONE_BYTE else 0.5


def _resident(tile: Tile, rows: int, device: Device) -> int:
    """Return about how many programs share a multiprocessor."""
    if tile.kernel in (CUTLASS_BLOCKS, CUTLASS_INT4):
        return 1
    if tile.kernel == CUTLASS_STREAM:
        return resident_warps(tile.m, tile.n * tile.k // STEP // tile.warps) // tile.warps
    threads, stages = WARP_THREADS * tile.warps, tile.stages
    if tile.kernel == "int4_skinny":
        shared, registers = 0.0, rows * tile.n // 16 + (stages + 1) * tile.n // 2 + 2 * rows
    elif tile.kernel == "scaled_blocks":
        shared, registers = float(stages * tile.k * (rows + tile.n)), 2 * rows * tile.n // threads
    else:
        shared = (2 * rows + tile.n * _bytes(tile)) * tile.k * max(stages - 1, 1)
        registers = (rows * tile.n + tile.n * tile.k // 2) // threads
    registers = min(registers + OTHER_REGISTERS, THREAD_REGISTERS)
    known = machine(device)
    assert known is not None, "covers() is true for known machines alone"
    fits = min(known.warps // tile.warps, REGISTERS // (registers * threads), int(known.smem // (shared + 1024)))
    return max(1, min(fits, MAX_RESIDENT))
