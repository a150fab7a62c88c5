"""Tables of any size with invented times: as many problems as wanted, and the same rows for each."""

from __future__ import annotations

import random
from collections.abc import Iterator

from gemmdb import Config, Device, Measurement, Problem, Protocol, Status, Toolchain
from gemmdb.kernels.config import ATEN
from gemmdb.table.measurement import Times

DEVICE = Device("cpu", "cpu", "Benchmark CPU", 2)
PROTOCOL = Protocol("host", "cold", 10, 30, version=3)
TOOLCHAIN = Toolchain(torch="2.13.0+cpu")
CONFIGS = 50
"""Rows of each problem: about as many as the table of the H200 has, 48."""


def configs(count: int = CONFIGS) -> list[Config]:
    """ATen and packed kernels of a CPU."""
    rest = dict.fromkeys(("threads_k", "blocks_m", "blocks_n", "blocks_k"), 0)
    packed = (Config.of("cpp", "packed_gemm", threads_m=i // 8, threads_n=i % 8, **rest) for i in range(count - 1))
    return [ATEN, *packed]


def problems(count: int, start: int = 0) -> Iterator[Problem]:
    """Distinct problems in four families, as new objects: those from number `start` on of an endless list."""
    kinds = (
        Problem.gemm("mm", m=1, n=8, k=8, dtype="bf16"),
        Problem.gemm("mm", m=1, n=8, k=8, dtype="fp32", constant_weight=True),
        Problem.gemm("addmm", m=1, n=8, k=8, dtype="bf16"),
        Problem.gemm("mixed_mm", m=1, n=8, k=8, dtype="bf16", fusion="scale"),
    )
    for number in range(start, start + count):
        kind, rest = number % 4, number // 4
        yield kinds[kind].resized(1 + rest % 64, 8 * (1 + rest // 64 % 1024), 8 * (1 + rest // 65536))


def rows(problem: Problem, every: list[Config], run: str = "run") -> Iterator[Measurement]:
    """A measurement of each config at a problem."""
    draw = random.Random(problem.m * 7919 + problem.n * 31 + problem.k)
    for config in every:
        us = 10.0 if config == ATEN else round(draw.uniform(5.0, 20.0), 3)
        times = Times(us, us * 0.99, us * 1.01, 30, 10.0)
        yield Measurement(problem, config, DEVICE, PROTOCOL, TOOLCHAIN, run, Status.OK, times, 1e-7, 0.5)
