"""Compile with nvcc what `h200_figures.py` will need: the CUTLASS kernels of the problems that its tasks draw.

    python benchmarks/h200_prepare.py --shapes PROBLEMS.jsonl [--table TABLE.db] [--peers 90] [--seed 1]

These are the picks of the problems, of the first `peers` that `h200_peers.py` draws and of the projections of
`llama.py`, as the code that Inductor emits for them, and what `gemmdb verify --remeasure 50 --seed S` times. Kernels go
where builds keep them: TORCHINDUCTOR_CACHE_DIR, and gemmdb's own cache. Needs torch and nvcc, no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import zip_longest
from multiprocessing import get_context
from pathlib import Path

from h200_peers import draw, population
from h200_results import SHIPPED

from gemmdb.generators.measure.cuda.artifact import Artifact, Built
from gemmdb.generators.measure.cuda.emitted_config import Emitted, only_emitted
from gemmdb.generators.measure.cuda.requirements import required
from gemmdb.generators.measure.remeasure import sample
from gemmdb.kernels.config import Config
from gemmdb.key.problem import Problem
from gemmdb.table.reader import Table

ROWS = (1, 2048)
"""Of the model's projections."""
PROJECTIONS = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096))
CAPABILITY = 90


def main() -> None:
    """Compile with half of the processors, and say how long it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=Path, required=True)
    parser.add_argument("--table", type=Path, default=SHIPPED)
    parser.add_argument("--peers", type=int, default=90)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    wanted, started = needed(options), time.monotonic()
    print(f"{len(wanted)} artifacts", flush=True)
    with ProcessPoolExecutor(max((os.cpu_count() or 2) // 2, 1), get_context("spawn")) as pool:
        running = {pool.submit(build, artifact): artifact for artifact in wanted}
        for future in as_completed(running):
            built = future.result()
            print(f"{built.seconds:6.1f} s {running[future].key} {built.failure[:200]}", flush=True)
    print(f"{time.monotonic() - started:.0f} s in all", flush=True)


def needed(options: argparse.Namespace) -> list[Artifact]:
    """The artifacts that nvcc takes a minute for, those that are needed first before the others."""
    with Table.open(options.table) as table:
        groups = [
            list(picks(table, listed(options.shapes))),
            list(remeasured(table, options.seed)),
            list(picks(table, [p for _, p in draw(population(options.table), 40, 1)[: options.peers]])),
            list(picks(table, projections(table))),
        ]
    cutlass = [pair for turn in zip_longest(*groups) for pair in turn if pair and pair[1].backend == "cutlass"]
    found = {artifact.key: artifact for problem, config in cutlass for artifact in required(problem, config)}
    return list(found.values())


def listed(path: Path) -> list[Problem]:
    """The problems of a file of shapes that holds nothing else."""
    return [Problem.parse(json.loads(line)["problem"]) for line in path.read_text().splitlines()]


def projections(table: Table) -> list[Problem]:
    """The table's problems of the model's projections."""
    found = dict.fromkeys(row.problem for row in table.measurements())
    return [p for p in found if p.m in ROWS and (p.n, p.k) in PROJECTIONS]


def picks(table: Table, problems: list[Problem]) -> Iterator[tuple[Problem, Config]]:
    """The picks of problems, as emitted code."""
    device = table.devices()[0]
    for problem in problems:
        verdict = table.verdict(problem, device)
        if verdict is not None:
            yield problem, Emitted.code_of(verdict.pick)


def remeasured(table: Table, seed: int) -> Iterator[tuple[Problem, Config]]:
    """What the sample of a seed is timed with, and as what."""
    klass = next(iter(table.measurements())).toolchain.klass
    for one in sample(table, table.devices()[0], klass, 50, seed):
        for config in one.recorded:
            emitted = config in one.emitted and not only_emitted(config)
            yield one.verdict.problem, Emitted.code_of(config) if emitted else config


def build(artifact: Artifact) -> Built:
    """Compile an artifact, in a process of the pool."""
    return artifact.build(CAPABILITY)


if __name__ == "__main__":
    main()
