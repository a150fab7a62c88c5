"""The work of ATen on a GPU: the library's GEMM, and the kernels around it that a fused kernel would not need."""

from __future__ import annotations

import functools
import math

from gemmdb.cost.work import Setting, Tile, Work, work

TILES = ((64, 64), (64, 128), (128, 128), (128, 192), (192, 128), (128, 256))
"""Rows and columns of the tiles that cuBLAS is assumed to choose from. Without those of 192, ATen was expected to take
up to 1.7 times as long as it does at M=192."""


@functools.lru_cache(maxsize=64)
def library(setting: Setting) -> Work:
    """The Work of ATen: the GEMM with the best of a few tiles that cuBLAS has, and the kernels around it."""
    p, machine = setting.problem, setting.machine
    mixed, fused = p.spec.dequantises, p.fusion != "none"
    plain = setting.a if mixed else setting.b
    products = (_product(setting, m, n) for m, n in TILES)
    best = min(products, key=lambda w: w.latency * 0.6 + w.wide + w.sync)
    # A weight that is cast to the activation's dtype is written and read again, as is the output before a fused step.
    around = p.k * p.n * (setting.b + plain) if mixed else 0
    around += p.m * p.n * (4 if p.spec.integer else 2 * setting.a) if fused else 0
    extra = (p.k * p.n * (plain - setting.b)) / machine.dram if mixed else 0.0
    return best._replace(dram=best.dram + extra, second=float(mixed + fused), partial=around / machine.dram)


def bound(setting: Setting, w: Work) -> float:
    """A lower bound of ATen's microseconds for the Work `w`, by the machine's public rates: the time for its bytes
    (with those of a cast weight and of the output before a fused step) or for its operations."""
    cores = setting.problem.flops / setting.rate / setting.machine.tensor / setting.machine.sms
    return float(max(w.dram + w.partial + w.output, cores))


def _product(setting: Setting, m: int, n: int) -> Work:
    p, machine = setting.problem, setting.machine
    tiles = math.ceil(p.m / m) * math.ceil(p.n / n)
    split = max(1, min(machine.sms // tiles, p.k // 512))
    tile = Tile("gemm", m, n, 128 // setting.a, 4 if n < 128 else 8, 5, split, "fixup" if split > 1 else "none")
    return work(setting, tile)
