"""Time what ATen's GEMM is compared with: default mode's code, beside kernels of ours that stand in for it.

    python -m benchmarks.h200 references --out FILE.jsonl [--each 12] [--seconds 120]

Builds time default mode's code where ATen's GEMM is not the whole problem. Rows from before 2026-11-23 had kernels of
ours before and after the GEMM. FILE gets a line per problem: microseconds of both, with a cold cache. The problems
are a random sample of the shipped table, `--each` per op and epilogue.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from statistics import median, quantiles

from benchmarks.common import json_lines, software
from gemmdb.files import append_lines
from gemmdb.generators.measure.cuda import elementwise
from gemmdb.key.problem import Problem
from gemmdb.table.reader import Table

TABLE = Path("tables/sm90-nvidia-h200.db")
UNROLL, ROUNDS = 20, 15


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the result; lines are appended")
    parser.add_argument("--each", type=int, default=12, help="problems per op and epilogue; default: 12")
    parser.add_argument("--seconds", type=float, default=120, help="begin no further problem after that; default: 120")


def main(options: argparse.Namespace) -> None:
    """Time the sample and print the quantiles of the ratio by op and epilogue."""
    until = time.monotonic() + options.seconds
    wanted = sample(options.each)
    with ProcessPoolExecutor(max((os.cpu_count() or 2) - 2, 1), get_context("spawn")) as pool:
        written = list(zip(wanted, pool.map(_write, wanted), strict=True))
    for problem, failure in written:
        if time.monotonic() > until:
            break
        found = {"failure": failure} if failure else _times(problem)
        append_lines(options.out, [json.dumps({"problem": problem.text, **found, **software()})])
    for name, ratios in sorted(by_class(json_lines(options.out)).items()):
        ends = quantiles(ratios, n=10) if len(ratios) > 1 else ratios
        print(f"{name:36} {len(ratios):4}  {ends[0]:.3f} {median(ratios):.3f} {ends[-1]:.3f}")


def sample(each: int) -> list[Problem]:
    """The problems: `each` per op and epilogue, of those that have something around ATen's GEMM."""
    by_name: dict[str, list[Problem]] = defaultdict(list)
    with closing(Table.open(TABLE)) as table:
        for problem, _ in table.decided():
            if any(elementwise.around(problem)):
                by_name[_class(problem)].append(problem)
    chance = random.Random(0)
    return [one for name in sorted(by_name) for one in chance.sample(by_name[name], min(each, len(by_name[name])))]


def by_class(rows: Sequence[dict[str, object]]) -> dict[str, list[float]]:
    """Default mode's time over that of the stand-in, by op and epilogue."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if "default_us" in row:
            problem = Problem.parse(str(row["problem"]))
            found[_class(problem)].append(float(str(row["default_us"])) / float(str(row["stand_in_us"])))
    return found


def _class(problem: Problem) -> str:
    return f"{problem.op} {problem.fusion}"


def _write(problem: Problem) -> str:
    from gemmdb.generators.measure.cuda.artifacts import Emission
    from gemmdb.kernels.config import ATEN

    return Emission(problem, ATEN).build(90).failure


def _times(problem: Problem) -> dict[str, float]:
    from gemmdb.generators.measure.cuda import bench, calls, emitted
    from gemmdb.generators.measure.cuda.bench import Bench
    from gemmdb.kernels.config import ATEN
    from gemmdb.table.measurement import Protocol

    copies = Bench.of(problem).copies
    ways = {"stand_in_us": calls.aten(problem, copies)[0], "default_us": emitted.bind(problem, ATEN, copies)[0]}
    cold = Protocol("graph", "cold", UNROLL, ROUNDS, version=3)
    captured = {name: bench.capture(call, cold, len(copies), UNROLL) for name, call in {"": None, **ways}.items()}
    taken: dict[str, list[float]] = {name: [] for name in captured}
    for graph in captured.values():
        bench.elapsed(graph)
    for _ in range(ROUNDS):
        for name, graph in captured.items():
            taken[name].append(bench.elapsed(graph))
    empty = taken.pop("")
    return {
        name: median((took - base) / UNROLL for took, base in zip(times, empty, strict=True))
        for name, times in taken.items()
    }
