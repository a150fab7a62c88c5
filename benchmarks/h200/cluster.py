"""A build through Ray against the plain one, on the GPUs of one host, over the same list.

    python -m benchmarks.h200 cluster --out DIR [--gpus 2] [--shapes h200] [--problems 40] [--rounds 2] [--skip 0]

First all kernels of the list are compiled into the caches on disk, and a plain build that does not count compiles the
code of its winners, so that both kinds find them. Then the two kinds take turns, each into a new table in a process of
its own: plain, ray, ray, plain, and so on. DIR receives `cluster.json`, with the seconds of every build, from its call
to its last finished problem and of the whole process, and the medians of both kinds. Target: through Ray at most 10%
longer. All tables must hold the same number of pairs of problem and candidate.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.command import command
from benchmarks.common import visible_gpus, write_shapes
from benchmarks.h200.scaling import Finishes, compile_all
from gemmdb.errors import InputError
from gemmdb.generators import shapes
from gemmdb.generators.build.build import BuildRequest, build
from gemmdb.generators.request import BuildReport
from gemmdb.table.reader import Table

KINDS = ("plain", "ray")
LIMIT = 1.10


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--out", type=Path, required=True, help="the folder for the tables and the result")
    parser.add_argument("--gpus", type=int, default=2, help="the number of GPUs that both use")
    parser.add_argument("--shapes", default="h200", help="a preset, a workload or a file of shapes")
    parser.add_argument("--problems", type=int, default=40, help="number of problems of the shapes")
    parser.add_argument("--skip", type=int, default=0, help="number of problems to leave out before them")
    parser.add_argument("--effort", default="quick", help="quick, standard or full")
    parser.add_argument("--rounds", type=int, default=2, help="number of builds of each kind")
    parser.add_argument("--one", help=argparse.SUPPRESS)


def main(options: argparse.Namespace) -> None:
    """Compile, build in turn, write and print the result."""
    listed = options.out / "problems.jsonl"
    if options.one:
        print(json.dumps(one(options, listed)))
        return
    if options.rounds < 1 or options.problems < 1:
        raise InputError("--rounds and --problems must be at least 1")
    gpus = visible_gpus()
    if not 1 <= options.gpus <= len(gpus):
        raise InputError(f"--gpus {options.gpus}: this host has {len(gpus)}")
    options.out.mkdir(parents=True, exist_ok=True)
    write_shapes(listed, shapes.load(options.shapes, "cuda")[options.skip :][: options.problems])
    compiled = compile_all(options.effort, listed)
    run(options, "plain-first", gpus[: options.gpus])
    builds = [run(options, name, gpus[: options.gpus]) for name in order(options.rounds)]
    found = {"gpus": options.gpus, "effort": options.effort, "compiled": compiled, **summary(builds)}
    (options.out / "cluster.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


def order(rounds: int) -> list[str]:
    """The kinds of the builds one after another, such that neither is always first."""
    return [f"{kind}-{number}" for number in range(rounds) for kind in KINDS[:: 1 if number % 2 == 0 else -1]]


def summary(builds: list[dict[str, Any]]) -> dict[str, Any]:
    """The builds, the median seconds of each kind, the ratio of ray to plain, and whether all tables hold the same."""
    median = {
        kind: {
            name: statistics.median(one[name] for one in builds if one["kind"] == kind)
            for name in ("seconds", "process_s")
        }
        for kind in KINDS
    }
    ratio = {name: median["ray"][name] / median["plain"][name] for name in median["ray"]}
    return {
        "builds": builds,
        "median": median,
        "ratio": ratio,
        "within": ratio["seconds"] <= LIMIT,
        "same_rows": len({one["pairs"] for one in builds}) == 1,
    }


def run(options: argparse.Namespace, name: str, gpus: list[str]) -> dict[str, Any]:
    """One build in a process of its own."""
    child = command("benchmarks.h200", "cluster", out=options.out, gpus=options.gpus, effort=options.effort, one=name)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    started = time.monotonic()
    done = subprocess.run(child, env=environment, stdout=subprocess.PIPE, check=True)
    return {**json.loads(done.stdout), "process_s": time.monotonic() - started}


def one(options: argparse.Namespace, listed: Path) -> dict[str, Any]:
    """The build `options.one`, such as `ray-0`, as JSON."""
    kind = options.one.partition("-")[0]
    out, finishes = options.out / f"{options.one}.db", Finishes()
    out.unlink(missing_ok=True)
    request = BuildRequest(arch="native", shapes=str(listed), effort=options.effort, out=out, gpus=options.gpus,
                           ray="local" if kind == "ray" else None)  # fmt: skip
    report = built(request, finishes)
    with Table.open(out) as table:
        pairs = {(row.problem.text, row.config.text) for row in table.measurements()}
    return {
        "kind": kind,
        "measured": report.measured,
        "pairs": len(pairs),
        "seconds": finishes.times[-1] if finishes.times else report.seconds,
        "first_after_s": finishes.times[0] if finishes.times else None,
        "gpu_seconds_per_problem": report.seconds_per_job,
        "busy_share": report.busy_share,
        "disturbed": report.disturbed,
    }


def built(request: BuildRequest, finishes: Finishes) -> BuildReport:
    """The report of a build, over a cluster if the request says so."""
    if request.ray is None:
        return build(request, finishes)
    from gemmdb.generators.cluster.build import build as build_over

    (report,) = build_over(request, finishes)
    return report
