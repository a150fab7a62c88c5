"""Is the pick of an effort as good as the best config of the whole space? Search both, then time the picks.

    python -m benchmarks.h200 exhaustive --out DIR [--shapes h200] [--problems 24] [--effort standard] [--most 0]
        [--minutes 5]

DIR receives `effort.db`, built with the effort's own candidates; `everything.db`, built with all configs that
`gemmdb.generators.measure.cuda.space` knows for a problem; and `exhaustive.json`. `--most` limits the configs of a
problem: half of them are those that the cost model predicts to be the fastest, half are random. Builds resume and use
all GPUs, so you can repeat the command. Finally a new process times the two picks of each problem together, and the
loss comes from these times, because the best of a thousand noisy times looks better than it is. The target is a loss
within 1% for at most 2 GPU-seconds per problem.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import write_shapes
from benchmarks.h200.results import described
from gemmdb.cost.machine import machine
from gemmdb.cost.model import FITTED
from gemmdb.cost.work import Setting, tile_of
from gemmdb.generators import shapes
from gemmdb.generators.backend import Candidate, Job, Space
from gemmdb.generators.build.build import BuildRequest, build
from gemmdb.generators.effort import Effort, named
from gemmdb.generators.measure.cuda.backend import CudaBackend
from gemmdb.generators.measure.cuda.space import everything
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.lookup.ranking import uncovered
from gemmdb.table.reader import Table

SAMPLES = 60
"""Timed samples of each of the two picks."""


class Everything:
    """The candidates of the effort, and all others that the space knows."""

    def __init__(self, own: Space, most: int) -> None:
        self._own, self._most = own, most

    def candidates(self, problem: Problem, device: Device, effort: Effort) -> Sequence[Candidate]:
        """See `generators.backend.Space`."""
        others = everything(problem, device)
        likely = likeliest(others, problem, device, self._most // 2)
        some = list(dict.fromkeys((*likely, *others)))[: self._most or None]
        return list(dict.fromkeys((*self._own.candidates(problem, device, effort), *map(Candidate, some))))


def likeliest(configs: Sequence[Config], problem: Problem, device: Device, number: int) -> list[Config]:
    """The tiles that the cost model, without its trees, predicts to be the fastest; none if it does not cover the
    problem."""
    known = machine(device)
    if known is None or uncovered(problem):
        return []
    setting = Setting.of(problem, known)
    tiles = {config: tile for config in configs if (tile := tile_of(config)) is not None}
    return sorted(tiles, key=lambda config: FITTED.predict(setting, tiles[config]))[:number]


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--out", type=Path, required=True, help="the folder for the tables and the result")
    parser.add_argument("--shapes", default="h200", help="a preset, a workload or a file of shapes")
    parser.add_argument("--problems", type=int, default=24, help="number of problems, from the start of the shapes")
    parser.add_argument("--effort", default="standard", help="the effort to compare with everything")
    parser.add_argument("--most", type=int, default=0, help="the most configs of a problem; 0: all")
    parser.add_argument("--minutes", type=float, default=5.0, help="time limit of each build")


def main(options: argparse.Namespace) -> None:
    """Search twice, compare, write and print the result."""
    options.out.mkdir(parents=True, exist_ok=True)
    problems = shapes.load(options.shapes, "cuda")[: options.problems]
    listed = write_shapes(options.out / "problems.jsonl", problems)
    wide = CudaBackend()
    wide.space = Everything(wide.space, options.most)
    reports = {}
    for name, backend in (("effort", CudaBackend()), ("everything", wide)):
        request = BuildRequest(
            shapes=str(listed), effort=options.effort, out=options.out / f"{name}.db", minutes=options.minutes
        )
        reports[name] = build(request, backend=backend)
    found = compare(options.out, options.effort, problems)
    found["builds"] = {name: described(report) for name, report in reports.items()}
    (options.out / "exhaustive.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({name: value for name, value in found.items() if name != "problems"}, indent=1))


def compare(folder: Path, effort: str, problems: Sequence[Problem]) -> dict[str, Any]:
    """The loss of the effort's pick on every problem that has a verdict in both tables."""
    backend = CudaBackend()
    measurer = backend.measurer(0, named(effort, "cuda"))
    details = []
    try:
        with Table.open(folder / "effort.db") as few, Table.open(folder / "everything.db") as all_:
            for problem in problems:
                one, other = few.verdict(problem, backend.device), all_.verdict(problem, backend.device)
                if one is None or other is None:
                    continue
                job = Job(problem, other.protocol, tuple(map(Candidate, dict.fromkeys((ATEN, one.pick, other.pick)))))
                measurer.prepare([job])
                outcomes = measurer.measure(problem, job.legal, job.protocol, SAMPLES)
                us = {o.config: o.times.median_us for o in outcomes if o.times}
                tried = len({row.config for row in all_.rows(problem, backend.device)})
                details.append(_described(problem, (one.pick, other.pick), us, tried))
    finally:
        measurer.close()
        backend.close()
    losses = [max(d["loss"], 0.0) for d in details if d["loss"] is not None]
    return {
        "compared": len(losses),
        "within_1_percent": sum(loss <= 0.01 for loss in losses),
        "mean_loss": statistics.fmean(losses) if losses else None,
        "largest_loss": max(losses, default=None),
        "problems": details,
    }


def _described(problem: Problem, picks: tuple[Config, Config], us: dict[Config, float], tried: int) -> dict[str, Any]:
    mine, best = (us.get(pick, math.nan) for pick in picks)
    loss = mine / best - 1
    return {
        "problem": problem.text,
        "pick": picks[0].text,
        "best": picks[1].text,
        "tried": tried,
        "pick_us": mine,
        "best_us": best,
        "aten_us": us.get(ATEN),
        "loss": None if math.isnan(loss) else loss,
    }
