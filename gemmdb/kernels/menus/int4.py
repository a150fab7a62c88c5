"""What is tried of `int4` and of `int4_skinny`.

An entry of `int4.json` is (BLOCK_N, BLOCK_K, warps, blocks per multiprocessor, what is scaled). The pipeline has as
many stages as fit, and K is split until the multiprocessors are full once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product

from gemmdb.kernels import hardware
from gemmdb.kernels.config import Config
from gemmdb.kernels.menus.shared import Menu, read_shapes, splits_once, up_to
from gemmdb.kernels.triton.int4 import shared_bytes
from gemmdb.kernels.triton.int4_skinny import DEPTH, FEW_ROWS, MAX_ROWS
from gemmdb.key.device import Device
from gemmdb.key.int4 import MXFP4, PACKED, Int4Format
from gemmdb.key.problem import Problem

MIN_STAGES = 2
_OTHER_BYTES = 2048
"""Shared memory of a block beside its pipeline: what the system takes (1 KB), and tiles whose layout changes."""
_INT4_SHAPES = read_shapes("int4")
"""`in_order`: with activations in the order of memory, of weights whose words are not tiled."""
_IN_ORDER = {"order": "memory"}
_SKINNY_SHAPES = read_shapes("int4_skinny")
"""`adjacent`: with neighbouring steps, of weights in bytes, whose scales are then loaded at once; `lean`: in the lean
form. Tiled weights and those in bytes have lists of their own."""
_BESIDE_SKINNY = 3
"""How many legal ones of these are tried for up to eight rows: on an H200, `int4_skinny` was faster on all 13 problems
with so few, by 3 to 33%."""


def _usual_int4(problem: Problem, device: Device) -> Iterator[Config]:
    own = problem.int4
    if own is None or own.bits != 4:
        return
    entries = up_to(_INT4_SHAPES[_kind(own)], problem.m)
    if problem.m <= FEW_ROWS and problem.k % DEPTH == 0 and _kind(own) in ("bytes", "tiled"):
        entries = [entry for entry in entries if entry[4] == "weights" or entry[1] <= own.size][:_BESIDE_SKINNY]
    for listed, more in ((up_to(_INT4_SHAPES["in_order"], problem.m), _IN_ORDER), (entries, {})):
        for height in _heights(problem.m):
            for n, k, warps, residents, scaled in listed:
                for resident in residents:
                    yield from _configs(problem, device, (height, n, k), (warps, resident, scaled), more)


def _kind(own: Int4Format) -> str:
    if own.along_n:
        return "words_of_columns" if PACKED[own.packing].packed == "n" else "words"
    if own.packing == MXFP4:
        return MXFP4
    return "tiled" if own.inner else "bytes"


def _heights(m: int) -> tuple[int, ...]:
    """Of tiles: what holds all rows, or what large matrices are cut into."""
    least = max(8, 1 << (m - 1).bit_length())
    return (least,) if least <= hardware.SKINNY_ROWS else (64, 128, 256)


def _whole_int4(problem: Problem, device: Device) -> Iterator[Config]:
    heights = [height for height in (8, 16, 32, 64, 128, 256) if height < 2 * max(problem.m, 8)]
    launches = product((1, 2, 4, 8), (1, 2, 3, 4, 5, 6, 8), ("weights", "sums"))
    blocks = list(product(heights, (32, 64, 128, 256), (32, 64, 128, 256, 512)))
    for more, block, launch in product((_IN_ORDER, {}), blocks, list(launches)):
        yield from _configs(problem, device, block, launch, more)


def _configs(
    problem: Problem,
    device: Device,
    block: tuple[int, int, int],
    launch: tuple[int, int, str],
    more: Mapping[str, str],
) -> Iterator[Config]:
    """The configs of a tile `block` (rows, columns, depth): with the splits of K that fill the multiprocessors once,
    and without a split if that leaves less than half of them without work. `launch`: warps, blocks per multiprocessor,
    and what is scaled. `more`: further parameters."""
    warps, resident, scaled = launch
    own = problem.int4
    stages = _stages(problem, device, block, launch) if own is not None else 0
    if stages < MIN_STAGES:
        return
    for split in splits_once(problem, device, block, resident):
        yield Config.of(
            "triton", "int4", block_m=block[0], block_n=block[1], block_k=block[2], split_k=split, scaled=scaled,
            warps=warps, stages=stages, **more,
        )  # fmt: skip


def _stages(problem: Problem, device: Device, block: tuple[int, int, int], launch: tuple[int, int, str]) -> int:
    """The stages that fit when so many blocks share a multiprocessor, at most MAX_STAGES; 0 if none does."""
    warps, resident, scaled = launch
    room = hardware.shared_bytes(device) // resident - _OTHER_BYTES
    for stages in range(hardware.MAX_STAGES, 0, -1):
        if shared_bytes(block, (warps, scaled), stages, problem, device) <= room:
            return stages
    return 0


def skinny_mostly_fastest(problem: Problem) -> bool:
    """Whether `int4_skinny` is mostly faster than `int4`. With more than eight rows it was so on an H100 on 10 of 11
    weights in bytes, by up to a fourth, and on 6 of 47 tiled ones."""
    own = problem.int4
    assert own is not None
    return own.packing != MXFP4 and own.bits == 4 and (problem.m <= FEW_ROWS or _kind(own) == "bytes")


def _usual_skinny(problem: Problem, device: Device) -> Iterator[Config]:
    kind = "bytes" if problem.int4 is None else _kind(problem.int4)
    if kind == MXFP4:  # `int4_skinny` takes integers.
        return
    if kind.startswith("words"):
        yield from _each(problem, up_to(_SKINNY_SHAPES[f"lean_{kind}"], problem.m), lean=1)
        return
    yield from _each(problem, up_to(_SKINNY_SHAPES[f"lean_adjacent_{kind}"], problem.m), lean=1, adjacent=1)
    yield from _each(problem, up_to(_SKINNY_SHAPES[f"adjacent_{kind}"], problem.m), adjacent=1)
    yield from _each(problem, up_to(_SKINNY_SHAPES["plain"], problem.m))
    yield from _each(problem, up_to(_SKINNY_SHAPES[f"lean_{kind}"], problem.m), lean=1)


def _whole_skinny(problem: Problem, device: Device) -> Iterator[Config]:
    for form, activations in (({}, ("registers", "shared")), ({"lean": 1}, ("registers", "shared", "ahead"))):
        entries = list(product((16, 32, 64), (1, 2, 4, 8, 16), (1, 2, 3, 4), activations, ("before", "after")))
        yield from _each(problem, entries, **form)
        yield from _each(problem, [entry for entry in entries if entry[2] in (2, 4)], adjacent=1, **form)


def _each(problem: Problem, entries: Iterable[tuple[int, int, int, str, str]], **more: int) -> Iterator[Config]:
    """The configs of those that have a step for each of their stages."""
    for n, warps, stages, where, when in entries:
        if problem.m <= MAX_ROWS and DEPTH * warps * stages <= problem.k:
            yield Config.of(
                "triton", "int4_skinny", block_n=n, activations=where, next=when, warps=warps, stages=stages, **more
            )  # fmt: skip


INT4 = Menu(_usual_int4, _whole_int4)
INT4_SKINNY = Menu(_usual_skinny, _whole_skinny)
