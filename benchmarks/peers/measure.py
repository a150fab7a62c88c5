"""Time each GEMM of a sample with gemmdb, in default mode, and by each installed rival.

    python -m benchmarks.peers sample --out SAMPLE.jsonl
    python -m benchmarks.peers measure SAMPLE.jsonl --out LINES.jsonl [--seconds 500] [--gpus 4] [--warm 8]
    python -m benchmarks.peers report LINES.jsonl

One process per GPU compiles each GEMM in default mode and with gemmdb as installed, packs its weight for each rival,
lets the rival compile and tune, and checks every result against float64. Then all are timed in turn on the same
operands, by the protocol of the tables: CUDA graphs, cold weights, rotating addresses. `--warm N` first compiles the
kernels of DeepGEMM, humming and GemLite in N processes per GPU, for at most `--warm-seconds`. `--cache DIR` keeps what
they compile for the next call. `--slow` adds rivals that tune for a minute per problem.

torch multiplies int8 only with 17 rows or more, and fp8 with block scales only if the number of rows is a multiple
of 4. Below that, torch and gemmdb compute a GEMM with more rows, as programs have to.

LINES gets a JSON line per GEMM when it is done. GEMMs that have a line are skipped, so an interrupted run resumes. A
rival that raises, hangs or kills the process is a reason in the line; two deaths in an op, and it is left out of
that op.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.command import command
from benchmarks.common import gpu_states, json_lines, software, visible_gpus, without_root
from benchmarks.dense import measure as dense
from benchmarks.peers import report, sample
from benchmarks.peers.ops import OPS, class_of
from benchmarks.peers.rivals import LEFT_OUT, RIVALS, Rival, wanted
from benchmarks.peers.sample import Drawn
from gemmdb.files import append_lines

CACHES = {"DG_JIT_CACHE_DIR": "deepgemm", "HUMMING_CACHE_DIR": "humming", "CUDA_CACHE_PATH": "driver",
          "TRITON_CACHE_DIR": "triton", "PYTORCH_KERNEL_CACHE_PATH": "torch"}  # fmt: skip
"""The variables that name the caches of compiled kernels, which all processes share."""
DEATHS = 2
"""A rival that killed this many processes in an op is left out of the op."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("sample", type=Path, help="a file of `sample`")
    parser.add_argument("--out", type=Path, required=True, help="the file of lines; new lines are appended")
    parser.add_argument("--ops", default=",".join(OPS), help="measure only these; default: all")
    parser.add_argument("--rivals", help="time only these beside gemmdb and default mode; default: all that fit")
    parser.add_argument("--slow", action="store_true", help="also those that tune for a minute per problem")
    parser.add_argument("--samples", type=int, default=15, help="timed samples of each; default: 15")
    parser.add_argument("--seconds", type=float, default=500, help="begin no GEMM after that time; default: 500")
    parser.add_argument("--gpus", type=int, help="number of GPUs; default: all of the host")
    parser.add_argument("--warm", type=int, default=0, help="processes per GPU that compile in advance; default: none")
    parser.add_argument("--warm-seconds", type=float, default=120, help="at most so long, of --seconds; default: 120")
    parser.add_argument("--cache", type=Path, help="where rivals keep what they compile; default: a new folder")
    for name in ("--worker", "--warmer"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)


def main(options: argparse.Namespace) -> None:
    """Measure what is missing on all GPUs and print the report, or be one process of it."""
    if options.worker or options.warmer:
        (work if options.worker else warm)(options, *map(int, (options.worker or options.warmer).split("/")))
        return
    until = time.monotonic() + options.seconds
    options.out.parent.mkdir(parents=True, exist_ok=True)
    append_lines(options.out, [without_root(header(options))])
    gpus = visible_gpus()[: options.gpus]
    with tempfile.TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True) as folder:
        cache = options.cache or Path(folder) / "cache"
        workers = [Worker(options, (place, len(gpus)), gpu, Path(folder), cache) for place, gpu in enumerate(gpus)]
        if options.warm:
            warm_up(workers, options)
        options.seconds = until - time.monotonic()
        for one in workers:
            one.start()
        for one in workers:
            one.join()
    print("\n".join(report.text(json_lines(options.out))))


def header(options: argparse.Namespace) -> dict[str, Any]:
    """What the lines after it were made with."""
    text = options.sample.read_bytes() if options.sample.exists() else b""
    versions = {one.name: one.missing or one.version for one in RIVALS}
    return {
        "sample": hashlib.sha256(text).hexdigest()[:16], "count": len(sample.read(options.sample)),
        "samples": options.samples, "rivals": versions, "left_out": LEFT_OUT, "gpus": gpu_states(), **software(),
    }  # fmt: skip


def share(options: argparse.Namespace, place: int, places: int) -> list[Drawn]:
    """A process's share of the GEMMs that have no line."""
    done = {line["problem"] for line in json_lines(options.out) if "taken" in line or "failure" in line}
    names = options.ops.split(",")
    drawn = [one for one in sample.read(options.sample) if one.op in names]
    return [one for one in drawn[place::places] if one.problem.text not in done]


def rivals_of(options: argparse.Namespace, one: Drawn, lines: Sequence[dict[str, Any]]) -> tuple[list[Rival], set[str]]:
    """The rivals of a GEMM, and those among them that killed a process: on this GEMM, or DEATHS times in its op."""
    dead = [line for line in lines if "died" in line and line["op"] == one.op]
    deaths = Counter(line["died"] for line in dead)
    killers = {line["died"] for line in dead if line["problem"] == one.problem.text}
    killers |= {name for name, count in deaths.items() if count >= DEATHS}
    listed = wanted(one.op, options.slow, options.rivals)
    return [rival for rival in listed if rival.name not in killers], killers & {rival.name for rival in listed}


def work(options: argparse.Namespace, place: int, places: int) -> None:
    """Measure a worker's share on the GPU that this process sees, until the time is up."""
    from benchmarks.dense.worker import prepare
    from benchmarks.peers import worker

    until = time.monotonic() + options.seconds
    prepare()
    current = options.folder / "current.json"
    for one in share(options, place, places):
        if time.monotonic() > until:
            break
        begun = {"op": one.op, "problem": one.problem.text, "m": one.problem.m, "class": class_of(one.problem.m)}
        chosen, killers = rivals_of(options, one, json_lines(options.out))
        start = time.monotonic()
        with tempfile.TemporaryDirectory(dir=options.folder, ignore_cleanup_errors=True) as folder:
            tell = lambda name: current.write_text(json.dumps({**begun, "rival": name}))  # noqa: E731, B023
            found = worker.measure(one.problem, chosen, options.samples, Path(folder), tell)
        found.get("ways", {}).update({name: {"failure": "killed a process"} for name in killers})
        line = {**begun, **found, "seconds": round(time.monotonic() - start, 2)}
        append_lines(options.out, [without_root(line)])
        print(f"{place}: {one.op} {one.problem.head}: {report.brief(line)}", flush=True)
        if found.get("fatal"):
            sys.exit(1)


def warm(options: argparse.Namespace, place: int, places: int) -> None:
    """Compile in advance for a share of the GEMMs."""
    from benchmarks.peers import worker

    # Not `share`: ops that compile nothing would leave some processes idle.
    pairs = [(one, rivals) for one in share(options, 0, 1) if (rivals := compiling(one.op, options.rivals))]
    for one, rivals in pairs[place::places]:
        if failed := worker.warm(one.problem, rivals):
            print(f"warm: {one.problem.head}: {failed}", flush=True)


def compiling(op: str, names: str | None) -> list[Rival]:
    """The installed rivals of an op that compile kernels on the spot. `names`: only among these."""
    return [rival for rival in wanted(op, False, names) if rival.compiles and not rival.missing]


class Worker(dense.Worker):
    """Runs the share of one GPU in processes of their own. If a rival kills one, the next leaves it out."""

    def __init__(
        self, options: argparse.Namespace, place: tuple[int, int], gpu: str, folder: Path, cache: Path
    ) -> None:  # fmt: skip
        super().__init__(options, place, gpu, folder)
        self.environment |= {name: str(cache / part) for name, part in CACHES.items()}
        for part in CACHES.values():  # Processes that begin at once would create torch's at once, which fails.
            (cache / part).mkdir(parents=True, exist_ok=True)

    def call(self, seconds: float) -> tuple[str, ...]:
        """The command of a process."""
        return self.process(seconds, worker=f"{self.place[0]}/{self.place[1]}")

    def process(self, seconds: float, **role: str) -> tuple[str, ...]:
        """The command of a process with a role."""
        options = self.options
        found = command(
            "benchmarks.peers", "measure", options.sample, out=options.out, ops=options.ops, rivals=options.rivals,
            samples=options.samples, seconds=seconds, folder=self.folder, **role,
        )  # fmt: skip
        return (*found, "--slow") if options.slow else found

    def blame(self, reason: str) -> bool:
        """Write what killed the process: a rival, which the next process leaves out for this GEMM, or the GEMM itself.
        Returns whether the process had begun one."""
        current = self.folder / "current.json"
        if not current.exists():
            return False
        begun = json.loads(current.read_text())
        rival = begun.pop("rival")
        if begun["problem"] not in {one["problem"] for one in json_lines(self.options.out) if "failure" in one}:
            told = {"died": rival, "reason": reason} if rival in {one.name for one in RIVALS} else {"failure": reason}
            append_lines(self.options.out, [json.dumps({**begun, **told})])
        current.unlink()
        return True


def warm_up(workers: Sequence[Worker], options: argparse.Namespace) -> None:
    """Run the processes that compile in advance, until all have ended or their time is up."""
    until, places = time.monotonic() + options.warm_seconds, options.warm * len(workers)
    running = []
    for place in range(places):
        one = workers[place % len(workers)]
        call = one.process(options.warm_seconds, warmer=f"{place}/{places}")
        # Each compiles in itself: as many pools of Inductor's as processes would want all cores each.
        running.append(subprocess.Popen(call, env={**one.environment, "TORCHINDUCTOR_COMPILE_THREADS": "1"}))
    for process in running:
        try:
            process.wait(max(until - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    print(f"compiled in advance, {options.warm_seconds - (until - time.monotonic()):.0f} s", flush=True)
