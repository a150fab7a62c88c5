"""Is the pick of an effort as good as the best of the whole space? Both are searched, then timed against each other.

    python benchmarks/h200_exhaustive.py --out DIR [--shapes h200] [--problems 24] [--effort standard] [--most 0]
        [--minutes 5]

DIR receives `effort.db`, built with the effort's own candidates; `everything.db`, built with all that
`generators.cuda.space` can say about a problem (`--most` limits that to so many: half of them those that the cost
model expects to be the fastest of all, half at random); and `exhaustive.json`. Builds resume and use all GPUs, so the
command can be repeated. The two picks of each problem are at last timed together, in a new process, which is what the
loss is taken from: the best of a thousand noisy times looks better than it is. The target is a loss within 1% for at
most 2 GPU-seconds per problem.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gemmdb.cost.machine import machine
from gemmdb.cost.model import FITTED
from gemmdb.cost.work import Setting, tile_of
from gemmdb.generators.build.build import BuildReport, BuildRequest, build
from gemmdb.generators.interfaces.backend import Candidate, Job, Space
from gemmdb.generators.interfaces.effort import Effort, named
from gemmdb.generators.measure.cuda.backend import CudaBackend
from gemmdb.generators.measure.cuda.space import everything
from gemmdb.generators.shapes import problem_lists
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.ladder.model import uncovered
from gemmdb.table.reader import Table

SAMPLES = 60
"""Of the two picks against each other."""


class Everything:
    """The candidates of the effort, and all others that the space knows."""

    def __init__(self, own: Space, most: int) -> None:
        self._own, self._most = own, most

    def candidates(self, problem: Problem, device: Device, effort: Effort) -> Sequence[Candidate]:
        """See `interfaces.Space`."""
        others = everything(problem, device)
        likely = likeliest(others, problem, device, self._most // 2)
        some = list(dict.fromkeys((*likely, *others)))[: self._most or None]
        return list(dict.fromkeys((*self._own.candidates(problem, device, effort), *map(Candidate, some))))


def likeliest(configs: Sequence[Config], problem: Problem, device: Device, number: int) -> list[Config]:
    """The tiles that the cost model expects to be the fastest, without its trees; none where it knows no answer."""
    known = machine(device)
    if known is None or uncovered(problem):
        return []
    setting = Setting.of(problem, known)
    tiles = {config: tile for config in configs if (tile := tile_of(config)) is not None}
    return sorted(tiles, key=lambda config: FITTED.predict(setting, tiles[config]))[:number]


def main() -> None:
    """Search twice, compare, write and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shapes", default="h200")
    parser.add_argument("--problems", type=int, default=24)
    parser.add_argument("--effort", default="standard")
    parser.add_argument("--most", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=5.0, help="of the larger build")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    problems = problem_lists.load(options.shapes, "cuda")[: options.problems]
    listed = options.out / "problems.jsonl"
    listed.write_text("".join(json.dumps({"problem": problem.text}) + "\n" for problem in problems))
    wide = CudaBackend()
    wide.space = Everything(wide.space, options.most)
    reports = {}
    for name, backend in (("effort", CudaBackend()), ("everything", wide)):
        request = BuildRequest(
            loading=str(listed), effort=options.effort, out=options.out / f"{name}.db", minutes=options.minutes
        )
        reports[name] = build(request, backend=backend)
    found = compare(options, problems)
    found["builds"] = {name: described(report) for name, report in reports.items()}
    (options.out / "exhaustive.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({name: value for name, value in found.items() if name != "problems"}, indent=1))


def described(report: BuildReport) -> dict[str, Any]:
    """The report of a build as JSON."""
    kept = {name: value for name, value in asdict(report).items() if name not in ("out", "device")}
    return {**kept, "gpu_seconds_per_problem": report.seconds_per_job, "busy_share": report.busy_share}


def compare(options: argparse.Namespace, problems: Sequence[Problem]) -> dict[str, Any]:
    """The loss of the effort's pick on every problem that both tables have a verdict on."""
    backend = CudaBackend()
    measurer = backend.measurer(0, named(options.effort, "cuda"))
    details = []
    try:
        with Table.open(options.out / "effort.db") as few, Table.open(options.out / "everything.db") as all_:
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


if __name__ == "__main__":
    main()
