"""Time elementwise work that stores in another order: fused into a product's kernel, and behind ATen's.

    python -m benchmarks.h200 stores --out FILE

ATen is its GEMM and Inductor's kernel for the elementwise work after it, the others are tiles that compute both, as
the code that Inductor emits. bf16, a weight by rows of K, cold cache. FILE (JSON) gets the versions and, for each size
and class of epilogue, the median microseconds of one call by config.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

from gemmdb.errors import GemmdbError
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Protocol, Status

SIZES = ((64, 4096, 4096), (512, 1024, 1024), (2048, 1024, 1024), (2048, 4096, 1024), (2047, 1024, 1024))
FUSIONS = ("pointwise", "pointwise:permuted", "pointwise:transposed", "pointwise:math:transposed")
TILES = tuple(
    Config.of(
        "triton", "tile", block_m=rows, block_n=columns, block_k=64, group_m=8, split_k=1, reduce="none", swap=0,
        load="pointer", dequant="cast", warps=warps, stages=4,
    )
    for rows, columns, warps in ((64, 64, 4), (64, 128, 4), (128, 128, 8))
)  # fmt: skip
PROTOCOL = Protocol("graph", "cold", 10, 25, version=3)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--out", type=Path, required=True, help="the file for the times")


def main(options: argparse.Namespace) -> None:
    """Time all, print how much faster the best tile is, and write the times. Raises GemmdbError where a tile is wrong
    or does not compile."""
    from gemmdb.devices import detect
    from gemmdb.key.toolchain import installed

    device, toolchain = detect.cuda(), installed("cuda")
    if device is None or toolchain is None:
        raise GemmdbError("needs an NVIDIA GPU and torch's build for CUDA")
    rows: list[dict[str, Any]] = []
    for problem in problems():
        rows.append({"problem": problem.text, "us": timed(problem)})
        print(f"{problem.m} {problem.n} {problem.k} {problem.fusion}: {gain(rows[-1]):.2f}x", flush=True)
    versions = {"device": device.sku, "torch": toolchain.torch, "triton": toolchain.triton}
    found = {"date": f"{date.today()}", **versions, "protocol": PROTOCOL.text, "rows": rows}
    options.out.write_text(json.dumps(found, indent=1) + "\n")


def problems() -> Iterator[Problem]:
    """What is timed, the classes of one size one after the other."""
    for m, n, k in SIZES:
        for fusion in FUSIONS:
            yield Problem.gemm("mm", m=m, n=n, k=k, fusion=fusion)


def timed(problem: Problem) -> dict[str, float]:
    """Median microseconds of one call by config, all in turn on the GPU of this process."""
    from gemmdb.generators.measure.cuda import session
    from gemmdb.generators.measure.cuda.artifacts import Emission, Emitted

    configs = [ATEN, *map(Emitted.code_of, TILES)]
    for config in configs[1:]:
        if failure := Emission(problem, config).build(90).failure:
            raise GemmdbError(f"{config.text}: {failure}")
    for config in configs:
        loaded = session.load(problem, config, PROTOCOL)
        if loaded.status is not Status.OK:
            raise GemmdbError(f"{config.text}: {loaded.status}: {loaded.detail}")
    times = session.time_round(problem, configs, PROTOCOL, PROTOCOL.samples)
    names = [ATEN, *TILES]
    return {name.text: median(times[config]) for name, config in zip(names, configs, strict=True)}


def gain(row: dict[str, Any]) -> float:
    """How many times faster than ATen the best tile of a row is."""
    us = dict(row["us"])
    aten: float = us.pop(ATEN.text)
    best: float = min(us.values())
    return aten / best
