"""Measure problems on this machine's GPU and append the rows to a JSONL file, until done or out of time.

    python benchmarks/h200_build.py --problems FILE --out DIR [--seconds 500] [--confirm 60] [--samples 25]

FILE holds one canonical problem per line; problems that DIR/rows.jsonl already has are skipped, so the command can be
repeated. Each row is the canonical texts of a Measurement; `h200_import.py` puts them into a table. DIR/summary.jsonl
has one line per problem: the best times, ATen's, and the time of a streaming read of the weight. Then, for `--confirm`
seconds, winners are measured again in a new process, and those rows are appended too. `--configs N` tries N configs of
the whole space instead of the menu.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from gemmdb.config import ATEN
from gemmdb.generators.cuda.backend import CudaBackend
from gemmdb.generators.cuda.measurer import CudaMeasurer
from gemmdb.generators.cuda.space import everything
from gemmdb.generators.effort import Effort
from gemmdb.generators.interfaces import Candidate, Job, Outcome, row
from gemmdb.generators.search import race
from gemmdb.measurement import Measurement, Status
from gemmdb.problem import Problem

AHEAD = 24
"""Problems whose candidates are being compiled while one is timed."""


def texts(found: Measurement) -> dict[str, object]:
    """A Measurement as JSON-ready canonical texts."""
    times = found.times
    return {
        "problem": found.problem.text, "config": found.config.text, "device": found.device.text,
        "protocol": found.protocol.text, "toolchain": found.toolchain.text, "run": found.run,
        "status": found.status.value, "error": found.error, "compile_s": found.compile_s, "detail": found.detail,
        "times": times and [times.median_us, times.low_us, times.high_us, times.samples, times.aten_us],
    }  # fmt: skip


def jobs(options: argparse.Namespace, backend: CudaBackend, effort: Effort, done: set[str]) -> Iterator[Job]:
    """The jobs of the problems that have no rows yet, in the order of the file."""
    protocol = backend.protocols(effort)[0]
    for line in Path(options.problems).read_text().split("\n"):
        if line and line not in done:
            problem = Problem.parse(line)
            candidates = list(backend.space.candidates(problem, backend.device, effort))
            if options.configs:
                candidates = [Candidate(ATEN), *map(Candidate, everything(problem, backend.device)[: options.configs])]
            yield Job(problem, protocol, tuple(candidates))


def summary(job: Job, outcomes: list[Outcome], floor: list[float] | None, seconds: float) -> dict[str, object]:
    """What one problem came to, in microseconds."""
    full = sorted((o for o in outcomes if o.status is Status.OK and o.times), key=lambda o: o.times.ratio)
    aten = next((o for o in full if o.config == ATEN), None)
    statuses: dict[str, int] = {}
    for outcome in outcomes:
        statuses[outcome.status.value] = statuses.get(outcome.status.value, 0) + 1
    return {
        "problem": job.problem.text, "seconds": round(seconds, 2), "statuses": statuses,
        "aten_us": aten.times.median_us if aten else None, "floor_us": statistics.median(floor) if floor else None,
        "best": [[o.config.text, round(o.times.median_us, 2), round(1 / o.times.ratio, 3)] for o in full[:6]],
        "bad": sorted({f"{o.config.name} {o.status} {o.detail[:160]}" for o in outcomes if not o.times})[:6],
    }  # fmt: skip


def main() -> None:
    """Run the build; print one line per problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument("--confirm", type=float, default=60)
    parser.add_argument("--configs", type=int, default=0)
    parser.add_argument("--samples", type=int, default=25)
    parser.add_argument("--run", default=time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()))
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    effort = Effort("h200", 1, options.samples, 3, 1.03, 5, ("cold",), 60.0, 60.0, confirm=False)
    backend = CudaBackend()
    options.out.mkdir(parents=True, exist_ok=True)
    rows, lines = options.out / "rows.jsonl", options.out / "summary.jsonl"
    done = {json.loads(line)["problem"] for line in lines.read_text().splitlines()} if lines.exists() else set()
    todo = list(jobs(options, backend, effort, done))
    print(
        f"{len(todo)} problems, device {backend.device.text}, {backend.toolchain.text}",
        backend.provenance(),
        flush=True,
    )
    measurer = backend.measurer(0, effort)
    winners: list[tuple[Job, Outcome]] = []
    try:
        for index, job in enumerate(todo):
            if time.monotonic() > until:
                break
            measurer.prepare(todo[index : index + AHEAD])
            start = time.monotonic()
            outcomes = race(job, effort, measurer)
            floor = measurer.floor(job.problem, job.protocol, 11)
            line = summary(job, outcomes, floor, time.monotonic() - start)
            append(rows, [texts(row(job, o, backend, options.run)) for o in outcomes])
            append(lines, [line])
            winners += [(job, min((o for o in outcomes if o.status is Status.OK and o.times), key=ratio))]
            print(job.problem.text[:46], job.problem.fusion, f"{line['seconds']}s aten {line['aten_us']} floor",
                  line["floor_us"], line["best"][:1], line["statuses"], line["bad"][:1], flush=True)  # fmt: skip
        measurer.renew()
        confirm(winners, measurer, rows, (options, backend))
    finally:
        measurer.close()
        backend.close()


def ratio(outcome: Outcome) -> float:
    """Time relative to ATen."""
    return outcome.times.ratio if outcome.times else float("inf")


def append(path: Path, lines: list[dict[str, object]]) -> None:
    """Add lines to a JSONL file, whole."""
    with path.open("a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))


def confirm(
    winners: list[tuple[Job, Outcome]],
    measurer: CudaMeasurer,
    rows: Path,
    context: tuple[argparse.Namespace, CudaBackend],
) -> None:
    """Measure winners again, in this measurer's new process, and say how far the two processes differ."""
    options, backend = context
    until, changes = time.monotonic() + options.confirm, []
    for job, first in winners:
        if time.monotonic() > until:
            break
        configs = list(dict.fromkeys((ATEN, first.config)))
        again = measurer.measure(job.problem, configs, job.protocol, options.samples)
        append(rows, [texts(row(job, o, backend, f"{options.run}-confirm")) for o in again])
        if first.times and again[-1].times:
            changes.append(abs(again[-1].times.median_us / first.times.median_us - 1))
    if changes:
        within = sum(change <= 0.01 for change in changes)
        print(f"confirmed {len(changes)} winners: {within} within 1%, median {statistics.median(changes):.4f}, "
              f"largest {max(changes):.4f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
