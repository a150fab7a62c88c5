"""Time a random sample of the shipped problems as Inductor compiles them: default, max-autotune, and with the table.

    python -m benchmarks.h200 peers --out peers.jsonl [--table TABLE.db] [--number 40] [--seconds 180] [--gpus N]
        [--only STRATUM] [--drawn-from TABLE.db]

One process compiles each GEMM three times: `default`; `autotune`, which is `max-autotune-no-cudagraphs` as a user
gets it; and `gemmdb`, strict with the table. Each result is checked against float64. Then the code that Inductor
emitted is captured in CUDA graphs and timed interleaved, by the protocol of the tables: cold L2, rotating operands.
`linear` is default mode on `linear(x, w.to(x.dtype)) * s`, a spelling of a bf16 weight-only GEMM that Inductor's own
pattern matches; the other modes use a spelling that it does not match. `floor` is a streaming read of the weight, for
problems that are compared with one.

`--number` problems are drawn from each stratum of `benchmarks.h200.strata` by `--seed`, in an order whose every prefix
is balanced, and spread over all GPUs of the host. Each becomes a line of `--out` when it is done. Problems that have a
line are skipped, so you can repeat the command, for one stratum alone with `--only`. With `--drawn-from` the problems
are those of another table than the one that answers: a GPU's own small table, say, and the sample of the shipped one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from itertools import zip_longest
from pathlib import Path
from typing import Any

from benchmarks.command import command
from benchmarks.common import SHIPPED, gpu_states, json_lines, now, visible_gpus, without_root
from benchmarks.h200 import peers_report
from benchmarks.h200.results import with_cuda_kernels
from benchmarks.h200.strata import STRATA, STREAMED, streamed
from gemmdb.files import append_lines
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import installed
from gemmdb.table.measurement import one_line
from gemmdb.table.reader import Table

GRACE_S = 45.0
"""Seconds that a problem may still take after the time is up."""
STREAMED_NUMBER = 20
"""Problems drawn from the stratum STREAMED."""


def population(table: Path) -> dict[str, list[Problem]]:
    """The problems of a table by stratum, in a fixed order."""
    with Table.open(table) as opened:
        found = sorted({problem for problem, _ in opened.pairs()}, key=lambda p: p.text)
    return {name: [p for p in found if member(p)] for name, member in {**STRATA, STREAMED: streamed}.items()}


def draw(by_stratum: dict[str, list[Problem]], number: int, seed: int) -> list[tuple[str, Problem]]:
    """(stratum, problem), one of each stratum in turn. A problem that several strata drew is there once for each."""
    drawn = []
    for name, problems in by_stratum.items():
        most = min(len(problems), number if name != STREAMED else STREAMED_NUMBER)
        drawn.append([(name, p) for p in random.Random(f"{seed} {name}").sample(problems, most)])
    return [pair for turn in zip_longest(*drawn) for pair in turn if pair is not None]


def todo(options: argparse.Namespace, worker: int, workers: int) -> list[tuple[str, Problem]]:
    """A worker's share of the sample, without the problems that have a line already."""
    done = {(line["stratum"], line["problem"]) for line in json_lines(options.out) if "problem" in line}
    drawn = draw(population(options.drawn_from or options.table), options.number, options.seed)
    wanted = [pair for pair in drawn if options.only in (None, pair[0])]
    # Some strata are slow to compile. So each is dealt to the workers in turn, beginning with another worker.
    places, dealt, mine = {name: at for at, name in enumerate((*STRATA, STREAMED))}, Counter[str](), []
    for name, problem in wanted:
        if (places[name] + dealt[name]) % workers == worker and (name, problem.text) not in done:
            mine.append((name, problem))
        dealt[name] += 1
    return mine


def work(options: argparse.Namespace, worker: int, workers: int) -> None:
    """Measure a worker's share on the GPU that this process sees, until the time is up."""
    from benchmarks.h200 import peers_worker

    until = time.monotonic() + options.seconds
    for stratum, problem in todo(options, worker, workers):
        if time.monotonic() > until:
            break
        begun = {"stratum": stratum, "problem": problem.text}
        options.current.write_text(json.dumps(begun))
        found = peers_worker.measure(problem, options.table, options.samples)
        append_lines(options.out, [without_root({**begun, **found})])
        print(f"{worker}: {problem.head} {found.get('us', found)}", flush=True)
        if found.get("fatal"):
            sys.exit(1)


class Worker(threading.Thread):
    """Runs a worker's share in processes of their own. If one dies, its current problem gets a line, and the next
    process goes on."""

    def __init__(self, options: argparse.Namespace, place: tuple[int, int], folder: Path) -> None:
        super().__init__()
        self.options, self.place = options, place
        self.current, self.errors = folder / f"current-{place[0]}", folder / f"errors-{place[0]}"
        cache = with_cuda_kernels(folder / f"inductor-{place[0]}", os.environ.get("TORCHINDUCTOR_CACHE_DIR"))
        # A cache of its own: compile times are those of a first compile, except that nvcc's kernels are there.
        self.environment = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": visible_gpus()[place[0]],
            "TORCHINDUCTOR_CACHE_DIR": str(cache),
            "TORCHINDUCTOR_COMPILE_THREADS": str(max((os.cpu_count() or 2) // place[1], 2)),
        }

    def run(self) -> None:
        """The thread's body."""
        until = time.monotonic() + self.options.seconds
        while (left := until - time.monotonic()) > 0:
            # max-autotune prints everything that it timed.
            with self.errors.open("wb") as errors:
                process = subprocess.Popen(self._command(left), env=self.environment, stderr=errors)
                try:
                    code = process.wait(left + GRACE_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                    # A problem that had all of the time gets a line. Otherwise the next call has some time for it.
                    if self.current.exists() and time.time() - self.current.stat().st_mtime >= self.options.seconds:
                        self._blame(f"not done in {self.options.seconds:.0f} s")
                    return
            if code == 0:
                return
            said = self.errors.read_text(errors="replace").splitlines()[-1:]
            self._blame(one_line(f"the process ended with code {code}: {' '.join(said)}"))

    def _command(self, seconds: float) -> tuple[str, ...]:
        options = self.options
        return command(
            "benchmarks.h200", "peers", out=options.out, table=options.table, number=options.number, seed=options.seed,
            samples=options.samples, seconds=seconds, only=options.only, current=self.current,
            drawn_from=options.drawn_from, worker=f"{self.place[0]}/{self.place[1]}",
        )  # fmt: skip

    def _blame(self, reason: str) -> None:
        """Give the current problem a line, unless it has one."""
        begun = json.loads(self.current.read_text()) if self.current.exists() else None
        known = {(line.get("stratum"), line.get("problem")) for line in json_lines(self.options.out)}
        if begun and (begun["stratum"], begun["problem"]) not in known:
            append_lines(self.options.out, [json.dumps({**begun, "failure": reason})])


def header(options: argparse.Namespace) -> dict[str, Any]:
    """What the lines were made with: the table's strata, the seed, the machine."""
    toolchain = installed("cuda")
    with Table.open(options.table) as table:
        digest = table.digest
    with Table.open(options.drawn_from or options.table) as table:
        drawn_from = table.digest
    return {
        "population": {name: len(found) for name, found in population(options.drawn_from or options.table).items()},
        "seed": options.seed, "number": options.number, "samples": options.samples, "table": digest,
        "drawn_from": drawn_from,
        "date": now(), "gpus": gpu_states(), "toolchain": toolchain and toolchain.text,
    }  # fmt: skip


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--out", type=Path, required=True, help="the file of lines; new lines are appended")
    parser.add_argument("--table", type=Path, default=SHIPPED, help="default: the shipped H200 table")
    parser.add_argument("--drawn-from", type=Path, metavar="TABLE", help="whose problems are drawn; default: --table")
    parser.add_argument("--number", type=int, default=40, help="problems drawn from each stratum")
    parser.add_argument("--seed", type=int, default=1, help="draws the sample")
    parser.add_argument("--samples", type=int, default=25, help="timed samples of each mode")
    parser.add_argument("--seconds", type=float, default=180, help="begin no problem after that time")
    parser.add_argument("--gpus", type=int, help="number of GPUs; default: all of the host")
    parser.add_argument("--only", choices=[*STRATA, STREAMED], help="measure one stratum alone")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--current", type=Path, help=argparse.SUPPRESS)


def main(options: argparse.Namespace) -> None:
    """Draw, measure on all GPUs, print the summary."""
    if options.worker:
        worker, workers = map(int, options.worker.split("/"))
        work(options, worker, workers)
        return
    about = header(options)
    workers = min(len(visible_gpus()), options.gpus or len(visible_gpus()))
    append_lines(options.out, [json.dumps(about)])
    with tempfile.TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True) as folder:
        threads = [Worker(options, (worker, workers), Path(folder)) for worker in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    peers_report.show(json_lines(options.out))
