"""What the menus of our Triton kernels share: a tile, the pipeline that fits, the splits of K that fill the GPU.

A kernel's menu lists the configs that the generator tries. `usual` gives the configs that won, or came close, on
explored H200 problems (raw timings: benchmarks/results/h200/exploration), the most successful first. `whole` gives the
whole space.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from gemmdb.kernels import hardware
from gemmdb.kernels.config import Config
from gemmdb.kernels.triton import memory
from gemmdb.key.device import Device
from gemmdb.key.layout import ITEM_SIZES
from gemmdb.key.problem import Problem

PT = ("pointer", "tma")
PLAIN, BOTH = (0,), (0, 1)
_T = TypeVar("_T")


@dataclass(frozen=True)
class Menu:
    """The configs of a kernel that the generator tries on a problem and a device: the `usual` ones, and the `whole`
    space. Illegal configs are removed later."""

    usual: Callable[[Problem, Device], Iterable[Config]]
    whole: Callable[[Problem, Device], Iterable[Config]]


@dataclass(frozen=True)
class Shape:
    """A tile and how it runs. `resident`: how many blocks should share a multiprocessor."""

    m: int
    n: int
    k: int
    warps: int
    resident: int


def read_shapes(name: str) -> dict[str, tuple[tuple[int, tuple[Any, ...]], ...]]:
    """The shapes of `NAME.json` beside this module: by the name of each list, (largest size, entries) in ascending
    order. The file names the columns of an entry."""
    document = json.loads(Path(__file__).with_name(f"{name}.json").read_text())
    lists = {key: value for key, value in document.items() if key != "columns"}
    return {
        key: tuple((1 << 31 if limit == "more" else int(limit), _frozen(entries)) for limit, entries in value.items())
        for key, value in lists.items()
    }


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def up_to(menu: Sequence[tuple[int, Sequence[_T]]], m: int) -> Sequence[_T]:
    """The entries of the first list whose limit is at least `m` rows; none where `m` is above all limits."""
    return next((entries for limit, entries in menu if m <= limit), ())


def depth_of(problem: Problem, k: int) -> int:
    """The BLOCK_K that takes as many bytes as `k` of a menu. Menus count elements of 2 bytes (1 byte for int8 and
    fp8)."""
    return k * 2 // ITEM_SIZES[problem.a.dtype] if problem.a.dtype == "fp32" else k


def shallow_depth(problem: Problem) -> int:
    """The least BLOCK_K that holds a shallow K, and that the matrix unit takes."""
    least = hardware.MIN_DEPTH if ITEM_SIZES[problem.a.dtype] == 1 else 16
    return max(least, 1 << (problem.k - 1).bit_length())


def dequant(problem: Problem) -> str:
    """How a weight tile is best dequantised. Triton's own cast of int8 to bf16 is a few full-rate instructions; its
    other casts go through conversions."""
    pair = (problem.a.dtype, problem.b.dtype)
    return "bits" if problem.spec.dequantises and pair != ("bf16", "int8") else "cast"


def dequants(problem: Problem) -> tuple[str, ...]:
    """The modes of dequantising a weight tile that are tried."""
    return ("cast", "bits") if problem.spec.dequantises else ("cast",)


def stages(problem: Problem, device: Device, shape: Shape, load: str, swap: int) -> int:
    """The stages that fit when the blocks share a multiprocessor, at most MAX_STAGES; 0 if none does."""
    stage = hardware.stage_bytes((shape.m, shape.n, shape.k), hardware.item_sizes(problem.a, problem.b))
    room = hardware.shared_bytes(device) // shape.resident
    if load == "tma":
        room -= memory.transposed_bytes(problem, (shape.m, shape.n, shape.k), swap)
    buffers = max(room, 0) // (stage + hardware.BARRIER_BYTES)
    grouped = memory.by_warp_groups(problem, shape.n if swap else shape.m, shape.warps)
    return min(hardware.MAX_STAGES, buffers + (0 if grouped else 1)) if buffers else 0


def splits_once(problem: Problem, device: Device, block: tuple[int, int, int], resident: int) -> list[int]:
    """The splits of K with which tiles `block` (rows, columns, depth), `resident` of them on a multiprocessor, fill the
    multiprocessors once; also 1 if that leaves less than half of them without work."""
    tiles = hardware.tile_count(problem.m, problem.n, block[:2])
    splits = hardware.splits(tiles, device.units * resident, -(-problem.k // block[2]))
    whole = [1] if not splits or 2 * tiles >= device.units else []
    return [*whole, *splits]


def split(
    problem: Problem, device: Device, shape: Shape, load: str, swap: int, dequants: tuple[str, ...], idle: bool = True
) -> Iterator[Config]:
    """The configs of `tile` for a shape: without a split of K, and with the splits that fill the multiprocessors once.

    `idle`: also give the config without a split if it leaves more than half of the multiprocessors without work.
    """
    ahead = stages(problem, device, shape, load, swap)
    tiles = hardware.tile_count(problem.m, problem.n, (shape.m, shape.n))
    splits = hardware.splits(tiles, device.units * shape.resident, -(-problem.k // shape.k))
    whole = [(1, "none")] if idle or not splits or 2 * tiles >= device.units else []
    if ahead < 2:
        return
    for mode, (slices, reduce) in product(dequants, [*whole, *product(splits, ("fixup", "kernel"))]):
        yield Config.of(
            "triton", "tile", block_m=shape.m, block_n=shape.n, block_k=shape.k, group_m=hardware.BAND_ROWS,
            split_k=slices, reduce=reduce, swap=swap, load=load, dequant=mode, warps=shape.warps, stages=ahead,
        )  # fmt: skip
