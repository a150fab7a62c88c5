"""The throughput of `gemmdb build` on one GPU and on several, over the same list, with compiled kernels on disk.

    python -m benchmarks.h200 scaling --out DIR [--shapes h200] [--problems 240] [--skip 0] [--gpus 1,4] [--minutes 2]

First all kernels of the list are compiled into the disk caches of Triton and nvcc, so that only measuring is compared.
Then a process for each number of GPUs builds the list into a new table. The processes run side by side if the host has
enough GPUs, else one after another. `--skip` leaves out the first problems of the shapes, to get a list that no other
run has seen. DIR receives `scaling.json`, with two throughputs: over the whole build, which includes the start of
processes, and between the first and the last finished problem. The target is 3.5 times the problems per minute on 4
GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.command import command
from benchmarks.common import visible_gpus, write_shapes
from gemmdb.generators import shapes
from gemmdb.generators.build.build import BuildRequest, build
from gemmdb.generators.effort import named
from gemmdb.generators.measure.cuda.backend import CudaBackend
from gemmdb.generators.progress import State


@dataclass
class Finishes:
    """The seconds from its creation to each finished problem of a build."""

    started: float = field(default_factory=time.monotonic)
    times: list[float] = field(default_factory=list)

    def update(self, state: State) -> None:
        """Note the time for each problem that was finished since the last call."""
        while state.done - state.before > len(self.times):
            self.times.append(time.monotonic() - self.started)

    def per_minute(self) -> float | None:
        """Problems per minute between the first and the last."""
        if len(self.times) < 2:
            return None
        return 60 * (len(self.times) - 1) / max(self.times[-1] - self.times[0], 1e-9)

    def late_per_second(self) -> float | None:
        """Problems per second in the second half of the time."""
        late = [second for second in self.times if second > self.times[-1] / 2]
        return (len(late) - 1) / (late[-1] - late[0]) if len(late) > 2 else None


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--out", type=Path, required=True, help="the folder for the tables and the result")
    parser.add_argument("--shapes", default="h200", help="a preset, a workload or a file of shapes")
    parser.add_argument("--problems", type=int, default=240, help="number of problems of the shapes")
    parser.add_argument("--skip", type=int, default=0, help="number of problems to leave out before them")
    parser.add_argument("--effort", default="standard", help="quick, standard or full")
    parser.add_argument("--gpus", default="1,4", help="the numbers of GPUs to compare")
    parser.add_argument("--minutes", type=float, default=2.0, help="time limit of each build")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)


def main(options: argparse.Namespace) -> None:
    """Compile, build with each number of GPUs, write and print the result."""
    options.out.mkdir(parents=True, exist_ok=True)
    listed = options.out / "problems.jsonl"
    if options.one:
        print(json.dumps(one(options, listed)))
        return
    problems = shapes.load(options.shapes, "cuda")[options.skip :][: options.problems]
    write_shapes(listed, problems)
    found: dict[str, Any] = {"problems": len(problems), "compiled": compile_all(options.effort, listed), "builds": []}
    found["side_by_side"], found["builds"] = builds(options, list(map(int, options.gpus.split(","))))
    for name in ("per_minute", "steady_per_minute"):
        base, last = found["builds"][0][name], found["builds"][-1][name]
        found[f"{name}_ratio"] = last / base if base and last else None
    (options.out / "scaling.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


def builds(options: argparse.Namespace, counts: list[int]) -> tuple[bool, list[dict[str, Any]]]:
    """Whether the builds ran side by side, and the result of each. `counts`: the number of GPUs of each build."""
    visible = visible_gpus()
    together = sum(counts) <= len(visible)
    running: list[subprocess.Popen[bytes]] = []
    for index, gpus in enumerate(counts):
        first = sum(counts[:index]) if together else 0
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(visible[first : first + gpus])}
        child = command(
            "benchmarks.h200", "scaling", out=options.out, effort=options.effort, minutes=options.minutes, one=gpus
        )
        running.append(subprocess.Popen(child, env=environment, stdout=subprocess.PIPE))
        if not together:
            running[-1].wait()
    said = [process.communicate()[0] for process in running]
    return together, [json.loads(text) for text in said]


def compile_all(effort: str, listed: Path) -> dict[str, float]:
    """Compile what the list needs; returns the number of artifacts and the seconds."""
    backend, started = CudaBackend(), time.monotonic()
    try:
        futures = {
            id(future): future
            for problem in shapes.load(str(listed), "cuda")
            for candidate in backend.space.candidates(problem, backend.device, named(effort, "cuda"))
            if not candidate.rejected
            for future in backend.compilers.submit(problem, candidate.config)
        }
        seconds = sum(future.result().seconds for future in futures.values())
    finally:
        backend.close()
    return {"parts": len(futures), "seconds": time.monotonic() - started, "processor_seconds": seconds}


def one(options: argparse.Namespace, listed: Path) -> dict[str, Any]:
    """One build, as JSON."""
    out, finishes = options.out / f"gpus-{options.one}.db", Finishes()
    out.unlink(missing_ok=True)
    request = BuildRequest(
        shapes=str(listed), effort=options.effort, out=out, gpus=options.one, minutes=options.minutes
    )
    report = build(request, finishes)
    return {
        "gpus": report.workers,
        "measured": report.measured,
        "seconds": report.seconds,
        "per_minute": 60 * report.measured / report.seconds,
        "steady_per_minute": finishes.per_minute(),
        "gpu_seconds_per_problem": report.seconds_per_job,
        "busy_share": report.busy_share,
    }
