"""Time what the lookup answers for problems that no preset lists, beside ATen.

    python -m benchmarks.offtable fresh --out FILE.jsonl [--count 1000] [--seed 1] [--seconds 170] [--gpus 1]
    python -m benchmarks.offtable fresh-report FILE.jsonl...

The problems are drawn by the seed (`fresh_problems`). The shipped tables alone answer, as with `on_miss="aten"`: once
as it is, where only what is faster for certain is served, and once as before a confirmation. Where either answer is a
kernel, it is timed as a build times it: in turn with ATen, cold L2, checked against float64, in one process per GPU.
All other processors compile meanwhile. What is served without a confirmation comes first.

Each problem becomes a line of FILE. Problems that have a line are skipped, so you can repeat the command. It begins no
problem after `--seconds`; compiling and the first lookups count.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any

from benchmarks.common import gpu_states, json_lines, software
from benchmarks.offtable import fresh_report
from benchmarks.offtable.fresh_problems import draw
from benchmarks.offtable.ways import WAYS
from gemmdb.files import append_lines
from gemmdb.generators import effort
from gemmdb.generators.backend import Backend, Candidate, Job, Measurer, Outcome
from gemmdb.generators.measure import backends
from gemmdb.hit import Hit
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup import answer
from gemmdb.processes.pool import Stopped
from gemmdb.settings import Settings
from gemmdb.table.catalog import Catalog

POLL_S = 0.2
GRACE_S = 10.0
"""How long a problem that is being timed may take after the time is up."""
Answers = dict[str, Hit | None]


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--out", type=Path, required=True, help="the file of lines; new lines are appended")
    parser.add_argument("--count", type=int, default=1000, help="how many problems")
    parser.add_argument("--seed", type=int, default=1, help="draws the problems")
    parser.add_argument("--seconds", type=float, default=170, help="begin no problem after that time")
    parser.add_argument("--gpus", type=int, help="number of GPUs; default: all of the host")
    parser.add_argument("--samples", type=int, default=20, help="timed samples of each config")
    parser.add_argument("--grouped", action="store_true", help="weights in groups and block scales, instead of others")
    parser.add_argument("--skip-cutlass", action="store_true", help="leave out answers that nvcc must compile")


def main(options: argparse.Namespace) -> None:
    """Ask, time, write lines, print the summary."""
    until = time.monotonic() + options.seconds
    options.out.parent.mkdir(parents=True, exist_ok=True)
    backend = backends.backend_for(backends.device_for("native"))
    known = {row["problem"] for row in json_lines(options.out) if "problem" in row}
    problems = [problem for problem in draw(options.count, options.seed, options.grouped) if problem.text not in known]
    append_lines(options.out, [json.dumps({"seed": options.seed, "gpus": gpu_states(), **software()})])
    asked = {problem: answers(problem, backend.device) for problem in problems}
    quick = {p: found for p, found in asked.items() if not (options.skip_cutlass and needs_nvcc(found))}
    append_lines(options.out, [json.dumps(line(p, found, {})) for p, found in quick.items() if not kernels(found)])
    # What is served without a confirmation comes first: the time may not suffice for all.
    timed = {p: found for p, found in sorted(quick.items(), key=lambda pair: not serves(pair[1])) if kernels(found)}
    print(f"{len(problems)} problems, {len(timed)} answered with a kernel", flush=True)
    try:
        measure(backend, timed, options, until)
    finally:
        backend.close()
    fresh_report.show(json_lines(options.out))


@functools.cache
def shipped() -> Catalog:
    """The shipped tables alone."""
    return Catalog.load(Settings((), Path("/nonexistent/user.db"), "aten"))


def answers(problem: Problem, device: Device) -> Answers:
    """The answer of each way to ask."""
    return {name: answer(Query(problem, device), shipped(), policy) for name, policy in WAYS.items()}


def kernels(found: Answers) -> tuple[Config, ...]:
    """The configs other than ATen among some answers."""
    return tuple(dict.fromkeys(hit.config for hit in found.values() if hit is not None and hit.config != ATEN))


def serves(found: Answers) -> bool:
    """Whether a kernel is served without a confirmation."""
    return bool(kernels({"certain": found["certain"]}))


def needs_nvcc(found: Answers) -> bool:
    """Whether an answer is a CUTLASS kernel."""
    return any(config.backend == "cutlass" for config in kernels(found))


def line(problem: Problem, found: Answers, outcomes: dict[Config, Outcome]) -> dict[str, Any]:
    """The JSON-ready line of a problem: each answer, and the microseconds of each config and of ATen beside it."""
    row: dict[str, Any] = {"problem": problem.text, "op": problem.op, "m": problem.m}
    for name, hit in found.items():
        row[name] = None
        if hit is not None:
            sure = hit.evidence.get("least_gain")
            row[name] = {"rung": hit.rung, "config": hit.config.text, "speedup": hit.speedup, "least_gain": sure}
    row["timed"] = {
        config.text: {"us": one.times.median_us, "aten_us": one.times.aten_us} if one.times else
        {"failed": f"{one.status.value}: {one.detail}"[:300]}
        for config, one in outcomes.items()
    }  # fmt: skip
    return row


def measure(backend: Backend, timed: dict[Problem, Answers], options: argparse.Namespace, until: float) -> None:
    """Time the kernels, as the code that is served, on all GPUs, until all are timed or the time is up."""
    chosen = effort.named("quick", "cuda")
    protocol = replace(backend.protocols(chosen)[0], samples=options.samples)
    gpus = range(min(backend.workers, options.gpus or backend.workers))
    measurers = [backend.measurer(gpu, chosen) for gpu in gpus]
    served = {problem: map(measurers[0].emitted, kernels(found)) for problem, found in timed.items()}
    jobs = [Job(problem, protocol, tuple(map(Candidate, (ATEN, *codes)))) for problem, codes in served.items()]
    ready: SimpleQueue[Job] = SimpleQueue()
    over, left = Event(), set(map(id, jobs))
    backend.begin(jobs)
    preparing = Thread(target=_prepare, args=(measurers[0], jobs, ready.put, over), daemon=True)
    threads = [preparing, *(Thread(target=_work, args=(one, ready, left, over, timed, options.out), daemon=True)
                            for one in measurers)]  # fmt: skip
    for thread in threads:
        thread.start()
    while left and time.monotonic() < until and any(thread.is_alive() for thread in threads[1:]):
        time.sleep(POLL_S)
    over.set()
    for thread in threads[1:]:
        thread.join(GRACE_S)
    for measurer in measurers:
        measurer.close()


def _prepare(measurer: Measurer, jobs: Sequence[Job], ready: Any, over: Event) -> None:
    for job in jobs:
        if over.is_set():
            return
        try:
            measurer.prepare([job], ready)
        except Stopped:
            return


def _work(
    measurer: Measurer, ready: SimpleQueue[Job], left: set[int], over: Event,
    timed: dict[Problem, Answers], out: Path,
) -> None:  # fmt: skip
    for job in _jobs(ready, left, over):
        try:
            outcomes = measurer.measure(job.problem, job.legal, job.protocol, job.protocol.samples)
        except Stopped:
            return
        by_config = {one.config: one for one in outcomes if one.config != ATEN}
        append_lines(out, [json.dumps(line(job.problem, timed[job.problem], by_config))])
        left.discard(id(job))


def _jobs(ready: SimpleQueue[Job], left: set[int], over: Event) -> Iterator[Job]:
    """What is compiled, until nothing is left or the time is up."""
    while left and not over.is_set():
        try:
            yield ready.get(timeout=POLL_S)
        except Empty:
            continue
