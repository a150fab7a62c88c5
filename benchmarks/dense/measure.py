"""Time each GEMM of a sample as Inductor compiles it, in default mode and with gemmdb, beside cuBLASLt's heuristics.

    python -m benchmarks.dense sample --out SAMPLE.jsonl
    python -m benchmarks.dense measure SAMPLE.jsonl --out LINES.jsonl [--seconds 500] [--gpus 2] [--built TABLE.db]
    python -m benchmarks.dense report LINES.jsonl

One process per GPU compiles each GEMM by `torch.compile`, in default mode and with gemmdb as installed, checks the
results against float64, and captures both in CUDA graphs. Both, torch's own function, and the fastest of all heuristics
of cuBLASLt are timed in turn, in one process, on the same operands, by the protocol of the tables: cold weights,
rotating addresses. `--built TABLE` adds a third way, gemmdb with the table that `gemmdb build --shapes SAMPLE.jsonl
--out TABLE` made. All ways are also timed without a graph, 200 calls after each other: what the host needs.

For each GEMM, gemmdb has the compile budget of a new process and an empty user table, and Inductor's caches are new
ones; what they get from GEMMs before it is what a process keeps in memory. About every second GEMM compiles
default mode last.

LINES gets a JSON line per GEMM when it is done. GEMMs that have a line in the same ways are skipped, so an interrupted
run resumes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.command import command
from benchmarks.common import gpu_states, json_lines, software, visible_gpus, without_root
from benchmarks.dense import report, sample
from benchmarks.dense.sample import Drawn
from gemmdb.files import append_lines
from gemmdb.table.measurement import one_line

GRACE_S = 45.0
"""Seconds that a GEMM may still take after the time is up."""
FOLDERS = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton", "XDG_DATA_HOME": "data",
    "XDG_CACHE_HOME": "cache",
}  # fmt: skip
"""The variables of a worker that name its caches, which are new ones."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("sample", type=Path, help="a file of `sample`")
    parser.add_argument("--out", type=Path, required=True, help="the file of lines; new lines are appended")
    parser.add_argument("--built", type=Path, metavar="TABLE", help="a table of these GEMMs, for a third way")
    parser.add_argument("--samples", type=int, default=25, help="timed samples of each way; default: 25")
    parser.add_argument("--seconds", type=float, default=500, help="begin no GEMM after that time; default: 500")
    parser.add_argument("--gpus", type=int, help="number of GPUs; default: all of the host")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)


def main(options: argparse.Namespace) -> None:
    """Measure what is missing on all GPUs and print the report, or be one measuring process."""
    if options.worker:
        work(options, *map(int, options.worker.split("/")))
        return
    options.out.parent.mkdir(parents=True, exist_ok=True)
    append_lines(options.out, [json.dumps(header(options))])
    gpus = visible_gpus()[: options.gpus]
    with tempfile.TemporaryDirectory(prefix="dense-", ignore_cleanup_errors=True) as folder:
        threads = [Worker(options, (place, len(gpus)), gpu, Path(folder)) for place, gpu in enumerate(gpus)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print("\n".join(report.text(json_lines(options.out))))


def header(options: argparse.Namespace) -> dict[str, Any]:
    """What the lines after it were made with."""
    text = options.sample.read_bytes() if options.sample.exists() else b""
    digest = hashlib.sha256(text).hexdigest()[:16]
    built = options.built.name if options.built else None
    return {"sample": digest, "count": len(sample.read(options.sample)), "samples": options.samples, "built": built,
            "gpus": gpu_states(), **software()}  # fmt: skip


def todo(drawn: Sequence[Drawn], lines: Sequence[dict[str, Any]], built: bool, place: int, places: int) -> list[Drawn]:
    """A worker's share of the GEMMs, without those that a line has in all ways."""
    wanted = {"default", "gemmdb", *(["built"] if built else [])}
    done = {line["problem"] for line in lines if "failure" in line or wanted <= set(line.get("ways", {}))}
    # The ranges of M alternate, and each GPU has a share of each.
    shares = ((number + number // len(sample.STRATA)) % places for number in range(len(drawn)))
    return [one for one, share in zip(drawn, shares, strict=True) if share == place and one.problem.text not in done]


def work(options: argparse.Namespace, place: int, places: int) -> None:
    """Measure a worker's share on the GPU that this process sees, until the time is up."""
    from benchmarks.dense import worker

    until = time.monotonic() + options.seconds
    worker.prepare()
    current = options.folder / "current.json"
    for one in todo(sample.read(options.sample), json_lines(options.out), bool(options.built), place, places):
        if time.monotonic() > until:
            break
        begun = {"problem": one.problem.text, "origin": one.origin, "m": one.problem.m}
        current.write_text(json.dumps(begun))
        start = time.monotonic()
        with tempfile.TemporaryDirectory(dir=options.folder, ignore_cleanup_errors=True) as folder:
            found = worker.measure(one.problem, options.built, options.samples, Path(folder))
        line = {**begun, **found, "seconds": round(time.monotonic() - start, 2)}
        append_lines(options.out, [without_root(line)])
        print(f"{place}: {one.problem.head}: {report.brief(line)}", flush=True)
        if found.get("fatal"):
            sys.exit(1)


class Worker(threading.Thread):
    """Runs the share of one GPU in processes of their own. If one dies, its GEMM gets a line, and another goes on."""

    def __init__(self, options: argparse.Namespace, place: tuple[int, int], gpu: str, folder: Path) -> None:
        super().__init__()
        self.options, self.place, self.folder = options, place, folder / f"worker-{place[0]}"
        self.folder.mkdir()
        self.environment = {
            **os.environ,
            **{name: str(self.folder / part) for name, part in FOLDERS.items()},
            "CUDA_VISIBLE_DEVICES": gpu,
            "TORCHINDUCTOR_COMPILE_THREADS": str(max((os.cpu_count() or 2) // place[1], 2)),
        }

    def run(self) -> None:
        """The thread's body."""
        until = time.monotonic() + self.options.seconds
        while (left := until - time.monotonic()) > 0:
            with (self.folder / "errors.txt").open("wb") as errors:
                process = subprocess.Popen(self.call(left), env=self.environment, stderr=errors)
                try:
                    code = process.wait(left + GRACE_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                    return
            if code == 0:
                return
            said = (self.folder / "errors.txt").read_text(errors="replace").splitlines()[-1:]
            if not self.blame(one_line(f"the process ended with code {code}: {' '.join(said)}")):
                print(f"{self.place[0]}: {' '.join(said)}", flush=True)
                return

    def call(self, seconds: float) -> tuple[str, ...]:
        """The command of a process."""
        options = self.options
        return command(
            "benchmarks.dense", "measure", options.sample, out=options.out, built=options.built, seconds=seconds,
            samples=options.samples, folder=self.folder, worker=f"{self.place[0]}/{self.place[1]}",
        )  # fmt: skip

    def blame(self, reason: str) -> bool:
        """Give the GEMM that a process died of a line, unless it has one. Returns whether the process had begun one."""
        current = self.folder / "current.json"
        if not current.exists():
            return False
        begun = json.loads(current.read_text())
        if begun["problem"] not in {line.get("problem") for line in json_lines(self.options.out)}:
            append_lines(self.options.out, [json.dumps({**begun, "failure": reason})])
        current.unlink()
        return True
