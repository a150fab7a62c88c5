"""Time a random sample of the shipped problems as Inductor compiles them: default, max-autotune, and with the table.

    python benchmarks/h200_peers.py --out peers.jsonl [--table TABLE.db] [--number 40] [--seconds 180] [--gpus N]
        [--only STRATUM]

Each product is compiled three times in one process: `default`; `autotune`, which is `max-autotune-no-cudagraphs` as a
user gets it; and `gemmdb`, strict with the table. Each result is checked against float64, then the code that Inductor
emitted is captured in CUDA graphs and timed interleaved, by the protocol of the tables: cold L2, rotating operands.
`linear` is default mode on the spelling `linear(x, w.to(x.dtype)) * s` of a bf16 weight-only product, which Inductor's
own pattern takes; the other ways use one that it does not. `floor` is a streaming read of the weight.

`number` problems are drawn from each stratum of `h200_results.STRATA` by `--seed`, in an order whose every prefix is
balanced, and spread over all GPUs of the host. Each becomes a line of `--out` when it is done; problems that have a
line are skipped, so the command can be repeated, for one stratum alone with `--only`.
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

import h200_peers_report
from h200_results import SHIPPED, STRATA, STREAMED, anywhere, lines, run, streamed, with_cuda_kernels

from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import installed
from gemmdb.table.measurement import one_line
from gemmdb.table.reader import Table
from gemmdb.workload.appending import append_lines

GRACE_S = 45.0
"""How long a problem that has been begun may still take when the time is up."""
STREAMED_NUMBER = 20


def population(table: Path) -> dict[str, list[Problem]]:
    """The problems of a table by stratum, in a fixed order."""
    with Table.open(table) as opened:
        found = sorted({row.problem for row in opened.measurements()}, key=lambda p: p.text)
    return {name: [p for p in found if member(p)] for name, member in {**STRATA, STREAMED: streamed}.items()}


def draw(by_stratum: dict[str, list[Problem]], number: int, seed: int) -> list[tuple[str, Problem]]:
    """(stratum, problem), one of each stratum in turn. A problem that several strata drew is there once for each."""
    drawn = []
    for name, problems in by_stratum.items():
        most = min(len(problems), number if name != STREAMED else STREAMED_NUMBER)
        drawn.append([(name, p) for p in random.Random(f"{seed} {name}").sample(problems, most)])
    return [pair for turn in zip_longest(*drawn) for pair in turn if pair is not None]


def todo(options: argparse.Namespace, lane: int, lanes: int) -> list[tuple[str, Problem]]:
    """A lane's share of the sample, without what has a line already."""
    done = {(line["stratum"], line["problem"]) for line in lines(options.out) if "problem" in line}
    drawn = draw(population(options.table), options.number, options.seed)
    wanted = [pair for pair in drawn if options.only in (None, pair[0])]
    # Every stratum is dealt to the lanes in turn, each beginning with another one: some are slow to compile.
    places, dealt, mine = {name: at for at, name in enumerate((*STRATA, STREAMED))}, Counter[str](), []
    for name, problem in wanted:
        if (places[name] + dealt[name]) % lanes == lane and (name, problem.text) not in done:
            mine.append((name, problem))
        dealt[name] += 1
    return mine


def run_lane(options: argparse.Namespace, lane: int, lanes: int) -> None:
    """Measure a lane's share on the GPU that this process sees, until the time is up."""
    import h200_peers_lane

    until = time.monotonic() + options.seconds
    for stratum, problem in todo(options, lane, lanes):
        if time.monotonic() > until:
            break
        begun = {"stratum": stratum, "problem": problem.text}
        options.current.write_text(json.dumps(begun))
        found = h200_peers_lane.measure(problem, options.table, options.samples)
        append_lines(options.out, [anywhere({**begun, **found})])
        print(f"{lane}: {problem.head} {found.get('us', found)}", flush=True)
        if found.get("fatal"):
            sys.exit(1)


class Lane(threading.Thread):
    """Runs a lane in processes of its own: where one dies, the problem in work gets a line and the next goes on."""

    def __init__(self, options: argparse.Namespace, place: tuple[int, int], folder: Path) -> None:
        super().__init__()
        self.options, self.place = options, place
        self.current, self.errors = folder / f"current-{place[0]}", folder / f"errors-{place[0]}"
        # Caches of its own: compile times are those of a first compile, but for nvcc's kernels where they are there.
        self.environment = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": visible()[place[0]],
            "TORCHINDUCTOR_CACHE_DIR": str(
                with_cuda_kernels(folder / f"inductor-{place[0]}", os.environ.get("TORCHINDUCTOR_CACHE_DIR"))
            ),
            "TORCHINDUCTOR_COMPILE_THREADS": str(max((os.cpu_count() or 2) // place[1], 2)),
        }

    def run(self) -> None:
        """The thread's body."""
        until = time.monotonic() + self.options.seconds
        while (left := until - time.monotonic()) > 0:
            # max-autotune tells at length what it timed.
            with self.errors.open("wb") as errors:
                process = subprocess.Popen(self._command(left), env=self.environment, stderr=errors)
                try:
                    code = process.wait(left + GRACE_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                    # The problem in work gets a line if it had all of the time; else the next call has some for it.
                    if self.current.exists() and time.time() - self.current.stat().st_mtime >= self.options.seconds:
                        self._blame(f"not done in {self.options.seconds:.0f} s")
                    return
            if code == 0:
                return
            said = self.errors.read_text(errors="replace").splitlines()[-1:]
            self._blame(one_line(f"the process ended with code {code}: {' '.join(said)}"))

    def _command(self, seconds: float) -> list[str]:
        options = self.options
        given = {"out": options.out, "table": options.table, "number": options.number, "seed": options.seed,
                 "samples": options.samples, "seconds": seconds, "current": self.current,
                 "lane": f"{self.place[0]}/{self.place[1]}"}  # fmt: skip
        given |= {"only": options.only} if options.only else {}
        flags = [text for name, value in given.items() for text in (f"--{name}", str(value))]
        return [sys.executable, str(Path(__file__)), *flags]

    def _blame(self, reason: str) -> None:
        """Give the problem in work a line, unless it wrote one itself."""
        begun = json.loads(self.current.read_text()) if self.current.exists() else None
        known = {(line.get("stratum"), line.get("problem")) for line in lines(self.options.out)}
        if begun and (begun["stratum"], begun["problem"]) not in known:
            append_lines(self.options.out, [json.dumps({**begun, "failure": reason})])


def visible() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    outer = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout.splitlines()
    return outer.split(",") if outer else [str(index) for index in range(len(listed))]


def header(options: argparse.Namespace) -> dict[str, Any]:
    """What the lines were made with: the table's strata, the seed, the machine."""
    query = "--query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit"
    smi = subprocess.run(["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True, check=True)
    toolchain = installed("cuda")
    with Table.open(options.table) as table:
        digest = table.digest
    return {
        "population": {name: len(found) for name, found in population(options.table).items()},
        "seed": options.seed, "number": options.number, "samples": options.samples, "table": digest,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "gpus": smi.stdout.splitlines(), "toolchain": toolchain and toolchain.text,
    }  # fmt: skip


def main() -> None:
    """Draw, measure on all GPUs, print what it comes to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", type=Path, default=SHIPPED)
    parser.add_argument("--number", type=int, default=40, help="problems drawn from each stratum")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--samples", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--only", choices=[*STRATA, STREAMED], help="go on with one stratum")
    parser.add_argument("--lane", help=argparse.SUPPRESS)
    parser.add_argument("--current", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.lane:
        lane, lanes = map(int, options.lane.split("/"))
        run_lane(options, lane, lanes)
        return
    about = header(options)
    lanes = min(len(visible()), options.gpus or len(visible()))
    append_lines(options.out, [json.dumps(about)])
    with tempfile.TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True) as folder:
        threads = [Lane(options, (lane, lanes), Path(folder)) for lane in range(lanes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = h200_peers_report.summary(lines(options.out))
    print(*(h200_peers_report.markdown(found) if found else ["nothing was measured"]), sep="\n\n")


if __name__ == "__main__":
    run(main)
