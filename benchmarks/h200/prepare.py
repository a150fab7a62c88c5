"""Compile with nvcc what `figures` needs: the CUTLASS kernels of the problems that its tasks draw.

    python -m benchmarks.h200 prepare --shapes PROBLEMS.jsonl [--table TABLE.db] [--peers 90] [--seed 1]

These are the picks, as the code that Inductor emits for them, of three groups: the problems, the first `--peers`
problems that `peers` draws, and the projections of the model of `benchmarks.torch models`. Added to them is what
`gemmdb verify --remeasure 50 --seed S` times. The kernels go where builds keep them: TORCHINDUCTOR_CACHE_DIR, and
gemmdb's own cache. Needs torch and nvcc, no GPU.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import zip_longest
from multiprocessing import get_context
from pathlib import Path

from benchmarks.common import SHIPPED, read_shapes
from benchmarks.h200.peers import draw, population
from gemmdb.generators.measure.cuda.artifacts import Artifact, Built, Emitted, only_emitted, required
from gemmdb.generators.measure.remeasure import sample
from gemmdb.kernels.config import Config
from gemmdb.key.problem import Problem
from gemmdb.table.reader import Table

ROWS = (1, 2048)
PROJECTIONS = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096))
"""M of the model's projections, and their N and K."""
CAPABILITY = 90


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--shapes", type=Path, required=True, help="the list of problems that `figures` wrote")
    parser.add_argument("--table", type=Path, default=SHIPPED, help="default: the shipped H200 table")
    parser.add_argument("--peers", type=int, default=90, help="number of the problems that `peers` draws")
    parser.add_argument("--seed", type=int, default=1, help="of `gemmdb verify --remeasure`")


def main(options: argparse.Namespace) -> None:
    """Compile with half of the processors, and print how long it took."""
    wanted, started = needed(options), time.monotonic()
    print(f"{len(wanted)} artifacts", flush=True)
    with ProcessPoolExecutor(max((os.cpu_count() or 2) // 2, 1), get_context("spawn")) as pool:
        running = {pool.submit(build, artifact): artifact for artifact in wanted}
        for future in as_completed(running):
            built = future.result()
            print(f"{built.seconds:6.1f} s {running[future].key} {built.failure[:200]}", flush=True)
    print(f"{time.monotonic() - started:.0f} s in all", flush=True)


def needed(options: argparse.Namespace) -> list[Artifact]:
    """The artifacts that nvcc compiles. Those that are needed first come first."""
    with Table.open(options.table) as table:
        groups = [
            list(picks(table, read_shapes(options.shapes))),
            list(remeasured(table, options.seed)),
            list(picks(table, [p for _, p in draw(population(options.table), 40, 1)[: options.peers]])),
            list(picks(table, projections(table))),
        ]
    cutlass = [pair for turn in zip_longest(*groups) for pair in turn if pair and pair[1].backend == "cutlass"]
    found = {artifact.key: artifact for problem, config in cutlass for artifact in required(problem, config)}
    return list(found.values())


def projections(table: Table) -> list[Problem]:
    """The problems of the table that are projections of the model."""
    found = dict.fromkeys(problem for problem, _ in table.pairs())
    return [p for p in found if p.m in ROWS and (p.n, p.k) in PROJECTIONS]


def picks(table: Table, problems: list[Problem]) -> Iterator[tuple[Problem, Config]]:
    """The picks of problems, as emitted code."""
    device = table.devices()[0]
    for problem in problems:
        verdict = table.verdict(problem, device)
        if verdict is not None:
            yield problem, Emitted.code_of(verdict.pick)


def remeasured(table: Table, seed: int) -> Iterator[tuple[Problem, Config]]:
    """The problems of the sample of a seed with the configs that are timed on them, as emitted code where that is
    timed."""
    klass = table.verdicts(*next(table.decided()))[0].klass
    for one in sample(table, table.devices()[0], klass, 50, seed):
        for config in one.recorded:
            emitted = config in one.emitted and not only_emitted(config)
            yield one.verdict.problem, Emitted.code_of(config) if emitted else config


def build(artifact: Artifact) -> Built:
    """Compile an artifact, in a process of the pool."""
    return artifact.build(CAPABILITY)
