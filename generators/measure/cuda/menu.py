"""The configs that won, or came close, on explored H200 problems: what is tried first.

An entry is (BLOCK_N, BLOCK_K, warps, blocks per multiprocessor, loads, swaps), with BLOCK_K for elements of 2 bytes (of
1 byte for int_mm and scaled_mm): the pipeline takes what shared memory that number of blocks leaves, and K is split
until the multiprocessors are full once. Raw timings: benchmarks/results/h200/exploration.
"""

from __future__ import annotations

from dataclasses import dataclass

P, T, PT = ("pointer",), ("tma",), ("pointer", "tma")
PLAIN, SWAPPED, BOTH = (0,), (1,), (0, 1)


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

MASKED, WRAPPED, STAGGERED, TURNED = ("mask", 0), ("wrap", 0), ("mask", 1), ("wrap", 1)
"""What a narrow kernel does with the rows beyond the end, and whether its programs begin at different places of K."""


@dataclass(frozen=True)
class Narrow:
    """One shape of a narrow kernel, for tile height `m`."""

    m: int
    n: int
    k: int
    warps: int
    resident: tuple[int, ...]
    modes: tuple[tuple[str, int], ...]
    swaps: tuple[int, ...] = PLAIN


def _narrow(m: int, *rows: tuple[object, ...]) -> tuple[Narrow, ...]:
    return tuple(Narrow(m, *row) for row in rows)  # type: ignore[arg-type]


_NARROW_MIXED = (
    (16, _narrow(
        16,
        (64, 128, 4, (4, 8), (STAGGERED, MASKED)), (128, 256, 4, (2,), (MASKED, STAGGERED, WRAPPED)),
        (32, 256, 4, (4,), (MASKED, STAGGERED)), (64, 256, 4, (4,), (MASKED,)), (64, 512, 4, (2,), (WRAPPED,)),
        (32, 128, 2, (4,), (STAGGERED, MASKED)), (64, 256, 2, (4,), (WRAPPED,)), (16, 256, 2, (4,), (WRAPPED,)),
        (128, 128, 4, (4, 2), (STAGGERED, MASKED)), (32, 256, 2, (4,), (WRAPPED,)),
    )),
    (32, _narrow(
        32,
        (64, 128, 2, (4,), (WRAPPED,)), (128, 128, 4, (2,), (WRAPPED, TURNED)), (128, 256, 4, (1,), (WRAPPED,)),
    )),
    (64, _narrow(64, (64, 64, 4, (4,), (MASKED, STAGGERED)), (128, 64, 4, (2,), (MASKED,)))),
)  # fmt: skip
_NARROW_INT = ((32, _narrow(32, (32, 512, 4, (2,), (STAGGERED,)), (64, 256, 4, (2,), (MASKED,), SWAPPED))),)
_NARROW_MM = (
    (16, _narrow(
        16,
        (64, 128, 4, (2, 4), (MASKED,), BOTH), (32, 256, 2, (2,), (MASKED,)), (64, 64, 4, (4,), (STAGGERED,), SWAPPED),
        (128, 128, 4, (2, 1), (STAGGERED,)), (128, 64, 8, (1,), (MASKED,), SWAPPED),
        (128, 64, 4, (2,), (MASKED,), SWAPPED),
    )),
    (32, _narrow(32, (64, 128, 4, (2,), (MASKED,), SWAPPED), (128, 128, 4, (1,), (STAGGERED,), SWAPPED))),
)  # fmt: skip

_NARROW_FP8 = (
    (16, _narrow(
        16,
        (64, 128, 4, (8, 4, 2), (MASKED,), SWAPPED), (64, 256, 4, (4, 2), (MASKED, STAGGERED), SWAPPED),
        (128, 256, 4, (2, 1), (MASKED,), SWAPPED), (128, 128, 4, (4, 2), (MASKED,), SWAPPED),
        (64, 128, 4, (8, 4), (STAGGERED,)), (128, 256, 4, (2,), (MASKED,)), (64, 256, 4, (4, 2), (MASKED,)),
        (16, 256, 2, (4,), (WRAPPED,)), (16, 512, 2, (4,), (MASKED,)), (32, 256, 2, (4,), (MASKED,)),
        (128, 128, 4, (4,), (MASKED,)), (32, 128, 2, (4,), (STAGGERED,)),
    )),
    (32, _narrow(
        32,
        (64, 128, 4, (4, 2), (MASKED, STAGGERED), BOTH), (32, 256, 2, (4, 2), (MASKED,)),
        (64, 256, 4, (2, 4), (MASKED, STAGGERED), BOTH), (32, 512, 4, (2,), (STAGGERED,)),
        (128, 128, 4, (2,), (MASKED,), BOTH), (128, 256, 4, (1,), (MASKED,), SWAPPED),
    )),
    (64, _narrow(
        64,
        (64, 128, 4, (4, 2), (MASKED,), BOTH), (64, 256, 4, (2, 1), (MASKED, STAGGERED), BOTH),
        (128, 128, 4, (2, 1), (MASKED,), BOTH), (32, 256, 4, (2,), (MASKED,)), (128, 256, 4, (1,), (MASKED,), BOTH),
        (128, 128, 8, (2,), (MASKED,), SWAPPED),
        # What is left without a fast accumulation.
        (64, 128, 2, (4, 2), (MASKED,)), (32, 256, 2, (4,), (MASKED,)),
    )),
)  # fmt: skip

_TILES_OF_256 = ((128, 256, 64, 8, 4, 1), (256, 128, 64, 8, 3, 1))
_PERSISTENT_MM = (
    (128, (
        (64, 128, 128, 4, 4, 2), (128, 128, 128, 8, 3, 1), (64, 128, 64, 4, 6, 2), (64, 256, 64, 4, 4, 1),
        (128, 128, 64, 4, 4, 1), (128, 256, 64, 8, 4, 1),
    )),
    (1 << 31, (
        *_TILES_OF_256, (128, 128, 64, 4, 4, 1), (64, 256, 64, 4, 4, 1), (128, 128, 64, 8, 4, 1),
        (128, 128, 128, 8, 3, 1),
    )),
)  # fmt: skip
_PERSISTENT_INT = (
    (128, ((64, 128, 128, 4, 5, 2), (128, 256, 128, 8, 4, 1))),
    (1 << 31, ((128, 128, 128, 4, 3, 2), (256, 128, 128, 8, 3, 1), (128, 256, 128, 8, 4, 1))),
)
_PERSISTENT_MIXED = (
    (64, ((64, 128, 128, 4, 3, 2), (64, 64, 128, 4, 4, 3))),
    (1 << 31, ((128, 128, 128, 8, 3, 1), (128, 256, 64, 8, 3, 1))),
)
FEWEST_PERSISTENT_ROWS = 33
"""With fewer, tiles are too small for the tensor copy engine to pay."""

GEMV = (
    (256, 16, 2, 3), (512, 4, 2, 3), (256, 4, 1, 5), (512, 4, 1, 3), (256, 4, 2, 5), (1024, 4, 4, 3), (128, 16, 2, 3),
    (256, 16, 4, 5), (1024, 4, 2, 1), (1024, 8, 4, 1), (256, 8, 2, 3), (256, 8, 1, 5),
    (512, 8, 2, 3), (256, 8, 2, 8), (256, 4, 2, 8), (1024, 4, 2, 3), (512, 8, 4, 3), (2048, 4, 4, 3),
)  # fmt: skip
"""(BLOCK_K, BLOCK_N, warps, stages)."""


def tiles(op: str, m: int) -> tuple[Entry, ...]:
    """The entries for an op and a number of rows, the most successful first."""
    menu = {"mixed_mm": _MIXED, "int_mm": _INT}.get(op, _MM)
    return next(entries for limit, entries in menu if m <= limit)


def narrow(op: str, m: int) -> tuple[Narrow, ...]:
    """The shapes of the narrow kernel for an op and a number of rows; none for more than it is good for."""
    menu = {"mixed_mm": _NARROW_MIXED, "int_mm": _NARROW_INT, "scaled_mm": _NARROW_FP8}.get(op, _NARROW_MM)
    return next((entries for limit, entries in menu if m <= limit), ())


def persistent(op: str, m: int) -> tuple[tuple[int, int, int, int, int, int], ...]:
    """(BLOCK_M, BLOCK_N, BLOCK_K, warps, stages, programs per multiprocessor) of persistent kernels."""
    if m < FEWEST_PERSISTENT_ROWS:
        return ()
    menu = {"mixed_mm": _PERSISTENT_MIXED, "int_mm": _PERSISTENT_INT}.get(op, _PERSISTENT_MM)
    return next(entries for limit, entries in menu if m <= limit)
