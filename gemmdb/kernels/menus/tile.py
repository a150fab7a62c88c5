"""What is tried of `tile`.

An entry is (BLOCK_N, BLOCK_K, warps, blocks per multiprocessor, loads, swaps), with BLOCK_K for elements of 2 bytes (of
1 byte for int_mm): the pipeline uses the shared memory that each of that number of blocks gets, and K is split until
the multiprocessors are full once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from gemmdb.kernels import hardware
from gemmdb.kernels.config import Config
from gemmdb.kernels.menus.shared import BOTH, PLAIN, PT, SWAPPED, Menu, P, Shape, T, deep, split, up_to, way, ways
from gemmdb.key.device import Device
from gemmdb.key.layout import ITEM_SIZES
from gemmdb.key.problem import Problem

MOST_WARPS = 32
"""The most warps of all blocks that share a multiprocessor."""


@dataclass(frozen=True)
class Entry:
    """One shape of a tile kernel, for tile height `m`."""

    m: int
    n: int
    k: int
    warps: int
    resident: tuple[int, ...]
    loads: tuple[str, ...] = P
    swaps: tuple[int, ...] = PLAIN


def _of(m: int, *rows: tuple[object, ...]) -> tuple[Entry, ...]:
    return tuple(Entry(m, *row) for row in rows)  # type: ignore[arg-type]


_MIXED = (
    (16, _of(
        16,
        (64, 256, 2, (8, 4)), (64, 128, 4, (8, 4)), (128, 256, 4, (4, 2)), (32, 128, 2, (8, 4)), (128, 128, 4, (4, 2)),
        (16, 256, 2, (4,)), (64, 128, 2, (8, 4)), (32, 64, 2, (4,)), (32, 128, 4, (4,)), (64, 512, 4, (4, 2)),
        (256, 128, 8, (2, 1)), (32, 128, 1, (4,)), (16, 256, 1, (8,)), (32, 256, 2, (4, 8)), (32, 256, 4, (4,)),
        (128, 256, 8, (2,)),
    )),
    (32, _of(
        32,
        (64, 128, 2, (4, 2)), (128, 128, 4, (2, 1)), (128, 256, 4, (1, 2)), (32, 128, 2, (8, 4)), (128, 128, 2, (4,)),
        (64, 128, 4, (4, 2)), (32, 256, 2, (4,)), (64, 256, 2, (4,)),
    )),
    (64, (
        *_of(
            64,
            (64, 128, 4, (4, 2)), (128, 64, 4, (4, 2, 1)), (128, 128, 4, (2, 1), PT), (64, 64, 4, (4, 2)),
        ),
        *_of(32, (64, 128, 2, (4,))),
    )),
    (1 << 31, (
        *_of(
            128,
            (256, 64, 8, (1,), T), (128, 128, 8, (2, 1), T), (128, 64, 4, (4, 2, 1), PT), (128, 64, 8, (2, 1), PT),
            (64, 128, 4, (2,), T), (128, 128, 4, (2,), T),
        ),
        *_of(64, (128, 64, 4, (4, 2), P), (64, 128, 4, (4,), T), (256, 64, 4, (2, 1), PT)),
    )),
)  # fmt: skip
_INT = (
    (32, (
        *_of(
            32,
            (64, 256, 4, (2, 4), P, SWAPPED), (64, 128, 4, (4, 2), P, SWAPPED), (32, 256, 2, (4, 2)),
            (32, 256, 1, (4,)), (128, 128, 4, (2,), PT, SWAPPED), (64, 256, 4, (2,)), (32, 512, 4, (2,)),
            (128, 128, 8, (2,), PT, SWAPPED),
        ),
        *_of(16, (64, 128, 4, (4,), P, SWAPPED), (64, 512, 2, (2, 1))),
    )),
    (64, (
        *_of(
            64,
            (128, 128, 4, (2, 1), PT, SWAPPED), (128, 128, 8, (2, 1), T, SWAPPED), (64, 256, 4, (2, 1), P, BOTH),
            (64, 128, 4, (4, 2), P, BOTH),
        ),
        *_of(32, (128, 128, 8, (2, 4), P, SWAPPED), (64, 256, 4, (2,), P, SWAPPED)),
    )),
    (1 << 31, (
        *_of(
            128,
            (64, 128, 4, (2, 1), P, SWAPPED), (64, 128, 8, (2,)), (64, 128, 4, (2,), PT, BOTH),
            (128, 64, 4, (4, 2), P, SWAPPED), (256, 128, 8, (1,), PT, BOTH),
            (128, 128, 4, (2, 1), T, BOTH), (128, 128, 8, (2, 1), PT, BOTH), (64, 256, 4, (1, 2), T),
        ),
        *_of(64, (128, 128, 4, (2,), T, SWAPPED), (64, 256, 4, (1,), P)),
        *_of(256, (128, 128, 8, (1,), T, PLAIN)),
    )),
)  # fmt: skip
_MM = (
    (16, _of(
        16,
        (64, 128, 4, (2, 4), P, BOTH), (16, 256, 2, (4, 2)), (16, 256, 1, (4,)), (128, 64, 2, (2, 4)),
        (128, 64, 8, (2, 1), P, BOTH), (128, 128, 2, (2,)), (128, 128, 4, (1, 2), PT, BOTH), (32, 64, 2, (4, 8)),
        (32, 128, 2, (4, 2)), (64, 64, 4, (4,), P, BOTH), (32, 256, 2, (2,)), (128, 64, 4, (2,), P, SWAPPED),
        (64, 256, 4, (1,)),
    )),
    (32, _of(
        32,
        (64, 128, 4, (2, 4), PT, BOTH), (64, 64, 4, (4, 2), P, BOTH), (32, 128, 2, (4,)), (128, 64, 4, (2,), P, BOTH),
        (128, 128, 4, (1,), PT, SWAPPED), (32, 256, 4, (2,)), (128, 64, 8, (2,), T, SWAPPED), (16, 256, 2, (4,)),
        (64, 256, 4, (1,), P),
    )),
    (64, (
        *_of(
            64,
            (32, 64, 4, (2, 4)), (64, 64, 4, (4, 2), PT, BOTH), (128, 64, 4, (2, 1), PT, BOTH), (16, 64, 4, (4,)),
            (64, 128, 4, (1, 2), PT, BOTH), (128, 64, 8, (2, 1), T, SWAPPED), (32, 128, 4, (2,)),
            (128, 128, 4, (1,), T, BOTH),
        ),
        *_of(32, (64, 256, 4, (1,)), (64, 64, 4, (4,), P, SWAPPED)),
    )),
    (1 << 31, (
        *_of(
            128,
            (128, 64, 4, (2, 1), PT), (128, 64, 8, (2, 1), PT), (256, 64, 8, (1,), PT, BOTH), (64, 64, 4, (4, 2), PT),
            (128, 128, 8, (1,), T),
        ),
        *_of(64, (128, 64, 4, (2, 4), PT, BOTH), (256, 64, 8, (1,), T, SWAPPED), (64, 128, 4, (1, 2), PT)),
        *_of(256, (128, 64, 8, (1,), PT)),
    )),
)  # fmt: skip

_MENUS = {"mixed_mm": _MIXED, "int_mm": _INT}
_DEPTHS = {"mm": (32, 64, 128, 256)}


def _usual(problem: Problem, device: Device) -> Iterator[Config]:
    for entry in up_to(_MENUS.get(problem.op, _MM), problem.m):
        for resident, load, swap in product(entry.resident, entry.loads, entry.swaps):
            shape = Shape(entry.m, entry.n, deep(problem, entry.k), entry.warps, resident)
            yield from split(problem, device, shape, load, swap, (way(problem),), idle=False)


def whole(problem: Problem, device: Device) -> Iterator[Config]:
    """The whole space of tiles. The spaces of `narrow` and `persistent` are made from it."""
    # As the left operand, a dequantised weight does not reach the matrix unit from registers in wide enough pieces.
    swaps = PLAIN if problem.spec.dequantises else BOTH
    depths = _DEPTHS.get(problem.op, (64, 128, 256, 512))
    for m, n, k, swap, load in product(_rows(problem.m), (16, 32, 64, 128, 256), depths, swaps, PT):
        if k > 2 * problem.k or (swap and n < hardware.GROUP_ROWS) or m * n > 256 * 128:
            continue
        for warps, resident in product(_warps(problem, (m, n, k), swap), (1, 2, 4, 8)):
            if warps * resident <= MOST_WARPS:
                yield from split(problem, device, Shape(m, n, k, warps, resident), load, swap, ways(problem))


def _rows(m: int) -> list[int]:
    """Tile heights: the power of two that holds M, the one below it, and what suits a large M."""
    least = min(max(16, 1 << (m - 1).bit_length()), 256)
    return [height for height in (least, least // 2, least // 4) if height >= (64 if m > 128 else 16)]


def _warps(problem: Problem, block: tuple[int, int, int], swap: int) -> list[int]:
    m, n, k = block
    left = n if swap else m
    if left >= hardware.GROUP_ROWS and (not problem.spec.dequantises or m >= 128):
        one = hardware.GROUP_WARPS
        return [one] if left < 2 * hardware.GROUP_ROWS else [one, 2 * one]
    # The condition limits the bytes of weight that a thread loads to registers in one step.
    size = ITEM_SIZES[problem.b.dtype]
    return [warps for warps in (1, 2, 4, 8) if 32 <= n * k * size // (warps * 32) <= 512 and n // warps >= 8]


MENU = Menu(_usual, whole)
