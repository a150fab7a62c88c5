"""What is tried of `gemv`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from gemmdb.kernels.config import Config
from gemmdb.kernels.menus.shared import Menu, dequants
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem

MAX_ROWS = 2
"""With more rows, the matrix unit does the same work faster."""
_ENTRIES = (
    (256, 16, 2, 3), (512, 4, 2, 3), (256, 4, 1, 5), (512, 4, 1, 3), (256, 4, 2, 5), (1024, 4, 4, 3), (128, 16, 2, 3),
    (256, 16, 4, 5), (1024, 4, 2, 1), (1024, 8, 4, 1), (256, 8, 2, 3), (256, 8, 1, 5),
    (512, 8, 2, 3), (256, 8, 2, 8), (256, 4, 2, 8), (1024, 4, 2, 3), (512, 8, 4, 3), (2048, 4, 4, 3),
)  # fmt: skip
"""(BLOCK_K, BLOCK_N, warps, stages)."""


def _usual(problem: Problem, device: Device) -> Iterator[Config]:
    if problem.m <= MAX_ROWS:
        # A gemv does not wait for the matrix unit, so every cast costs more than bit patterns.
        for k, n, warps, stages in _ENTRIES:
            yield _config(n, k, dequants(problem)[-1], warps, stages)


def _whole(problem: Problem, device: Device) -> Iterator[Config]:
    if problem.m > MAX_ROWS:
        return
    for n, k, dequant, warps, stages in product(
        (2, 4, 8, 16), (128, 256, 512, 1024, 2048), dequants(problem), (1, 2, 4), (1, 3, 5, 8)
    ):
        if 16 <= n * k * problem.m // (warps * 32) <= 64 and k <= problem.k:
            yield _config(n, k, dequant, warps, stages)


def _config(n: int, k: int, dequant: str, warps: int, stages: int) -> Config:
    return Config.of("triton", "gemv", block_n=n, block_k=k, dequant=dequant, warps=warps, unroll=1, stages=stages)


MENU = Menu(_usual, _whole)
