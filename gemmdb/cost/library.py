"""The work of ATen on a GPU: the library's GEMM, and the kernels around it that a fused kernel would not need."""

from __future__ import annotations

import functools
import math

from gemmdb.cost.work import Setting, Tile, Work, work
from gemmdb.kernels.hardware import by_warp_groups

TILES = ((64, 64), (64, 128), (128, 128), (128, 192), (192, 128), (128, 256))
"""Rows and columns of the tiles that cuBLAS is assumed to choose from. Without those of 192, ATen was expected to take
up to 1.7 times as long as it does at M=192."""
STAGES = 5
"""Their pipeline stages."""


def library(setting: Setting) -> Work:
    """The Work of ATen: the GEMM with the best of a few tiles that cuBLAS has, and the kernels around it."""
    return setting.once("library", lambda: _library(setting))


def _library(setting: Setting) -> Work:
    p, machine = setting.problem, setting.machine
    mixed, fused = p.spec.dequantises, p.fusion != "none"
    plain = setting.a if mixed else setting.b
    best = work(setting, _best_tile(setting))
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


def _best_tile(setting: Setting) -> Tile:
    """The best of TILES, with a split of K that fills the machine. Of its Work only what depends on its shape is
    compared, and one program of it fills a multiprocessor."""
    p, machine = setting.problem, setting.machine
    sms, depth, whole = machine.sms, 128 // setting.a, max(1, p.k // 512)
    best, least = (0, 0, 1), math.inf
    for m, n in TILES:
        tiles = setting.batch * -(-p.m // m) * -(-p.n // n)
        split = max(1, min(sms // tiles, whole))
        turns = -(-tiles * split // sms) * -(-p.k // (depth * split))
        rate = machine.tensor if machine.groups and by_warp_groups(m, _warps(n)) else machine.sync
        us = turns / (STAGES - 1) * 0.6 + 2.0 * m * n * depth * turns / setting.rate / rate
        if us < least:
            best, least = (m, n, split), us
    return _tile(*best, depth)


@functools.lru_cache(maxsize=1024)
def _tile(m: int, n: int, split: int, depth: int) -> Tile:
    return Tile("gemm", m, n, depth, _warps(n), STAGES, split, "fixup" if split > 1 else "none")


def _warps(columns: int) -> int:
    return 4 if columns < 128 else 8
