"""The work of ATen on a GPU: the library's GEMM, and the kernels around it that a fused kernel would not need."""

from __future__ import annotations

import functools

from gemmdb.cost.work import Setting, Tile, Work, is_wide, work

TILES = ((64, 64), (64, 128), (128, 128), (128, 192), (192, 128), (128, 256))
"""Rows and columns of the tiles that cuBLAS is assumed to choose from. Without those of 192, ATen was expected to take
up to 1.7 times as long as it does at M=192."""


def library(setting: Setting) -> Work:
    """The Work of ATen: the GEMM with the best of a few tiles that cuBLAS has, and the kernels around it."""
    found: Work | None = setting.memo.get("library")
    if found is None:
        found = setting.memo["library"] = _library(setting)
    return found


def _library(setting: Setting) -> Work:
    p, machine = setting.problem, setting.machine
    mixed, fused = p.spec.dequantises, p.fusion != "none"
    plain = setting.a if mixed else setting.b
    best = work(setting, min([_tile(setting, m, n) for m, n in TILES], key=lambda tile: _shape_us(setting, tile)))
    # A weight that is cast to the activation's dtype is written and read again, as is the output before a fused step.
    around = p.k * p.n * (setting.b + plain) if mixed else 0
    around += setting.batch * p.m * p.n * (4 if p.spec.integer else 2 * setting.a) if fused else 0
    extra = (p.k * p.n * (plain - setting.b)) / machine.dram if mixed else 0.0
    return best._replace(dram=best.dram + extra, second=float(mixed + fused), partial=around / machine.dram)


def bound(setting: Setting, w: Work) -> float:
    """A lower bound of ATen's microseconds for the Work `w`, by the machine's public rates: the time for its bytes
    (with those of a cast weight and of the output before a fused step) or for its operations."""
    cores = setting.problem.flops / setting.rate / setting.machine.tensor / setting.machine.sms
    return float(max(w.dram + w.partial + w.output, cores))


def _tile(setting: Setting, m: int, n: int) -> Tile:
    p = setting.problem
    tiles = setting.batch * -(-p.m // m) * -(-p.n // n)
    return _split_tile(m, n, 128 // setting.a, max(1, min(setting.machine.sms // tiles, p.k // 512)))


@functools.lru_cache(maxsize=1024)
def _split_tile(m: int, n: int, k: int, split: int) -> Tile:
    return Tile("gemm", m, n, k, 4 if n < 128 else 8, 5, split, "fixup" if split > 1 else "none")


def _shape_us(setting: Setting, tile: Tile) -> float:
    """What of a tile's Work depends on its shape. One program of it fills a multiprocessor."""
    p, machine = setting.problem, setting.machine
    programs = setting.batch * -(-p.m // tile.m) * -(-p.n // tile.n) * tile.split
    turns = -(-programs // machine.sms) * -(-p.k // (tile.k * tile.split))
    rate = machine.tensor if is_wide(setting, tile) else machine.sync
    return turns / (tile.stages - 1) * 0.6 + 2.0 * tile.m * tile.n * tile.k * turns / setting.rate / rate
