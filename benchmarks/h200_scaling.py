"""Throughput of `gemmdb build` on one GPU and on several, over the same list, with compiled kernels at hand.

    python benchmarks/h200_scaling.py --out DIR [--shapes h200] [--problems 240] [--skip 0] [--gpus 1,4] [--minutes 2]

First all kernels of the list are compiled into Triton's and nvcc's caches on disk, so that what is compared is
measuring. Then each number of GPUs builds the list into a new table, in a process of its own: side by side on GPUs of
their own where the host has enough of them, else one after another. `--skip` leaves out the first problems of the
shapes, for a list that no other run has seen. DIR receives `scaling.json`. Throughput is told
twice: over the whole build, starting processes included, and between the first and the last problem that was finished.
The target is 3.5 times the problems per minute on 4 GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gemmdb.generators.build.build import BuildRequest, build
from gemmdb.generators.interfaces.effort import named
from gemmdb.generators.interfaces.progress import State
from gemmdb.generators.measure.cuda.backend import CudaBackend
from gemmdb.generators.shapes import problem_lists


@dataclass
class Finishes:
    """Notes when problems were finished."""

    times: list[float] = field(default_factory=list)

    def update(self, state: State) -> None:
        """Note it once per problem."""
        if state.done - state.before > len(self.times):
            self.times.append(time.monotonic())

    def per_minute(self) -> float | None:
        """Problems per minute between the first and the last."""
        if len(self.times) < 2:
            return None
        return 60 * (len(self.times) - 1) / max(self.times[-1] - self.times[0], 1e-9)


def main() -> None:
    """Compile, build with each number of GPUs, write and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shapes", default="h200")
    parser.add_argument("--problems", type=int, default=240)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--effort", default="standard")
    parser.add_argument("--gpus", default="1,4")
    parser.add_argument("--minutes", type=float, default=2.0, help="of each build")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    listed = options.out / "problems.jsonl"
    if options.one:
        print(json.dumps(one(options, listed)))
        return
    problems = problem_lists.load(options.shapes, "cuda")[options.skip :][: options.problems]
    listed.write_text("".join(json.dumps({"problem": problem.text}) + "\n" for problem in problems))
    found: dict[str, Any] = {"problems": len(problems), "compiled": compile_all(options, listed), "builds": []}
    found["side_by_side"], found["builds"] = builds(list(map(int, options.gpus.split(","))))
    for name in ("per_minute", "steady_per_minute"):
        base, last = found["builds"][0][name], found["builds"][-1][name]
        found[f"{name}_ratio"] = last / base if base and last else None
    (options.out / "scaling.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


def builds(counts: list[int]) -> tuple[bool, list[dict[str, Any]]]:
    """Whether the builds with so many GPUs each ran side by side, and what they came to."""
    outer = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    visible = outer.split(",") if outer else [str(index) for index in range(CudaBackend().workers)]
    together = sum(counts) <= len(visible)
    running: list[subprocess.Popen[bytes]] = []
    for index, gpus in enumerate(counts):
        first = sum(counts[:index]) if together else 0
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(visible[first : first + gpus])}
        command = [sys.executable, __file__, *sys.argv[1:], "--one", str(gpus)]
        running.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE))
        if not together:
            running[-1].wait()
    said = [process.communicate()[0] for process in running]
    return together, [json.loads(text) for text in said]


def compile_all(options: argparse.Namespace, listed: Path) -> dict[str, float]:
    """Compile what the list needs; how many parts that are and how long it took."""
    backend, started = CudaBackend(), time.monotonic()
    effort = named(options.effort, "cuda")
    try:
        futures = {
            id(future): future
            for problem in problem_lists.load(str(listed), "cuda")
            for candidate in backend.space.candidates(problem, backend.device, effort)
            if not candidate.illegal
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
        loading=str(listed), effort=options.effort, out=out, gpus=options.one, minutes=options.minutes
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


if __name__ == "__main__":
    main()
