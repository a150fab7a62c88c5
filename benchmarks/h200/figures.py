"""Run everything that is measured with a finished H200 table, side by side on the GPUs of one host.

    python -m benchmarks.h200 figures --out OUT [--table TABLE.db] [--only NAME,...] [--minutes 9]

Each task runs one tool on GPUs of its own: as many as it asks for, or all if the host has fewer. Tasks begin in the
order of `--only`, or else of the list below. A task writes its result to OUT/NAME.* and its output to OUT/NAME.log. No
task begins that could not end within `--minutes`. Whole models and compile times come first, while the processors have
little else to do. `--caches` keeps Inductor's caches, so an interrupted task goes on from what it had compiled when you
run it again. Tasks that build share one cache, and Triton's cache (TRITON_CACHE_DIR, if it is set). Every task except
`compile` finds the CUDA kernels of that shared cache.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.command import command
from benchmarks.common import ROOT, SHIPPED, visible_gpus, write_shapes
from benchmarks.h200.results import with_cuda_kernels
from gemmdb.generators import shapes


@dataclass(frozen=True)
class Task:
    """A command on some GPUs, which is interrupted after `minutes`. `{out}` in it stands for OUT/NAME, `{table}` for
    the table, `{shapes}` for a list of problems, `{counts}` for the numbers of GPUs that builds are compared on.
    `builds`: whether it compiles what builds compile."""

    name: str
    command: tuple[str, ...]
    minutes: float
    gpus: int = 1
    builds: bool = False


@dataclass(frozen=True)
class Running:
    """A task that has begun, and its GPUs as CUDA_VISIBLE_DEVICES names them."""

    task: Task
    process: subprocess.Popen[bytes]
    gpus: Sequence[str]


def model(rows: int, weights: str) -> Task:
    """Decode for `rows` sequences, or a prefill of 2,048 tokens if `rows` is 0. `weights`: spellings of the GEMM."""
    case = ("--rows", str(rows), "--prefill", "0") if rows else ("--rows=", "--prefill", "2048")
    name = f"models-{rows or 'prefill'}-{weights.partition(',')[0]}"
    # A prefill with int8 weights compiles CUTLASS kernels with the model's own epilogues.
    minutes = 7.5 if not rows and weights.startswith("int8") else 4.5
    return Task(
        name, command("benchmarks.torch", "models", "--out", "{out}.jsonl", "--weights", weights, *case), minutes
    )


def h200(tool: str, *arguments: str) -> tuple[str, ...]:
    """The command of a tool of this package."""
    return command("benchmarks.h200", tool, *arguments)


SMALL = ("--shapes", "{shapes}", "--out", "{out}")
SEED = "1"
"""Draws the problems that `verify` times again."""
TASKS = (
    Task("compile", command("benchmarks.torch", "compile", "--out", "{out}.json", "--repeats", "1"), 8),
    *(model(rows, weights) for weights in ("int8,int8-before", "bf16") for rows in (0, 1, 4, 16)),
    Task("live", command("benchmarks.torch", "live", "--out", "{out}.json"), 4),
    Task("prepare", h200("prepare", "--shapes", "{shapes}", "--table", "{table}", "--seed", SEED), 6, gpus=0,
         builds=True),
    Task("repeat", h200("repeat", *SMALL, "--minutes", "4"), 6, builds=True),
    Task("exhaustive", h200("exhaustive", *SMALL, "--problems=22", "--most=300", "--minutes=4"), 7, builds=True),
    Task("verify", command("gemmdb", "verify", "{table}", "--remeasure", "50", "--seed", SEED, "--json"), 5,
         builds=True),
    Task("scaling", h200("scaling", *SMALL, "--problems=50", "--gpus", "{counts}"), 3.5, gpus=5, builds=True),
    Task("tests", (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib",
                   "-n", "24", "-q", "-rs", "-m", "not timed", "tests/gpu"), 6, gpus=2),
    Task("peers", h200("peers", "--out", "{out}.jsonl", "--table", "{table}", "--seconds", "200"), 5, gpus=6),
)  # fmt: skip


class Host:
    """The GPUs of this host, and the tasks that run on them."""

    def __init__(self, options: argparse.Namespace, shapes: Path) -> None:
        self._options, self._shapes = options, shapes
        self.free, self.running = visible_gpus(), list[Running]()
        self.count = len(self.free)

    def has_room(self, task: Task) -> bool:
        """Whether as many GPUs are free as a task asks for, or all."""
        return len(self.free) >= min(task.gpus, self.count)

    def begin(self, task: Task) -> None:
        """Run a task on free GPUs."""
        taken, self.free = self.free[: task.gpus], self.free[task.gpus :]
        out = self._options.out / task.name
        words = {
            "{out}": str(out), "{table}": str(self._options.table), "{shapes}": str(self._shapes),
            "{counts}": "1,4" if self.count >= 4 else f"1,{self.count}",
        }  # fmt: skip
        # An interrupt lets most tasks write what they have.
        limit = ["timeout", "--signal=INT", "--kill-after=15", str(60 * task.minutes)]
        filled = limit + [self._filled(argument, words) for argument in task.command]
        environment = {**os.environ, **self._cached(task)}
        if taken:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(taken)
        if not task.builds:
            environment.pop("TRITON_CACHE_DIR", None)
        with Path(f"{out}.log").open("wb") as log:
            process = subprocess.Popen(filled, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
        self.running.append(Running(task, process, taken))
        print(f"{task.name} on {','.join(taken)}", flush=True)

    def tidy(self) -> None:
        """Free the GPUs of the tasks that have ended."""
        for one in [one for one in self.running if one.process.poll() is not None]:
            print(f"{one.task.name}: exit code {one.process.returncode}", flush=True)
            self.running.remove(one)
            self.free = [*one.gpus, *self.free]

    def _cached(self, task: Task) -> dict[str, str]:
        """The cache of a task: `compile` starts with an empty one, and tasks must not wait for each other's locks."""
        shared = Path(self._options.caches) / "builds"
        cache = shared if task.builds else shared.with_name(task.name)
        if task.name != "compile":
            for other in (os.environ.get("TORCHINDUCTOR_CACHE_DIR"), None if task.builds else str(shared)):
                with_cuda_kernels(cache, other)
        return {"TORCHINDUCTOR_CACHE_DIR": str(cache)}

    @staticmethod
    def _filled(argument: str, words: dict[str, str]) -> str:
        for word, value in words.items():
            argument = argument.replace(word, value)
        return argument


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--out", type=Path, required=True, help="the folder for the results")
    parser.add_argument("--table", type=Path, default=SHIPPED, help="default: the shipped H200 table")
    parser.add_argument("--only", default="", help="names of tasks, or how they begin, in the order to run them in")
    parser.add_argument("--minutes", type=float, default=9, help="begin no task that could not end within that time")
    parser.add_argument("--caches", default="/tmp/h200-figures", help="a folder for Inductor's caches")


def main(options: argparse.Namespace) -> None:
    """Run the tasks."""
    options.out.mkdir(parents=True, exist_ok=True)
    run(options, chosen(list(filter(None, options.only.split(",")))))


def chosen(names: Sequence[str]) -> list[Task]:
    """The tasks whose names begin with one of `names`, in the order of `names`; all tasks if there are none."""
    found = [task for name in names or [""] for task in TASKS if task.name.startswith(name)]
    return list(dict.fromkeys(found))


def run(options: argparse.Namespace, left: list[Task]) -> None:
    """Begin the tasks in order, each as soon as its GPUs are free, and wait for all of them."""
    until = time.monotonic() + 60 * options.minutes
    host = Host(options, sample(options.out / "sample.jsonl"))
    while left or host.running:
        host.tidy()
        for task in list(left):
            if time.monotonic() + 60 * task.minutes > until:
                print(f"{task.name}: left out, {task.minutes:g} minutes are not left", flush=True)
                left.remove(task)
            elif host.has_room(task):
                host.begin(task)
                left.remove(task)
        time.sleep(0.5)


def sample(path: Path) -> Path:
    """Write a file of 50 problems of the preset `h200`, which `repeat` and `exhaustive` measure; returns its path."""
    return write_shapes(path, random.Random(7).sample(shapes.load("h200", "cuda")[:3900], 50))
