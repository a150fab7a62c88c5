"""Everything that is measured with a finished H200 table, side by side on the GPUs of one host.

    python benchmarks/h200_figures.py --out OUT [--table TABLE.db] [--only NAME,...] [--minutes 9]

Each task is one of the scripts of this folder, on as many GPUs as it asks for (all, where the host has fewer) and no
other task has at the time, in the order of `--only` or else of the list below; it writes to OUT/NAME.* and its output
to OUT/NAME.log. No task is begun that could not end in `minutes`. Whole models and compile times come first, while the
processors have little else to do. `--caches` keeps Inductor's caches, so that a task that was interrupted goes on with
what it had compiled when it is run again; what builds compile is shared between them, Triton's cache
(TRITON_CACHE_DIR, where it is given) too, and their CUDA kernels are at hand for every task but `compile`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from h200_peers import visible
from h200_results import ROOT, SHIPPED, with_cuda_kernels

from gemmdb.generators.shapes import problem_lists as shapes

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Task:
    """A command on some GPUs, that is interrupted after `minutes`. `{out}` in it stands for OUT/NAME, `{table}` for the
    table, `{shapes}` for a list of problems, `{counts}` for the numbers of GPUs that builds are compared on. `builds`:
    whether it compiles what builds compile."""

    name: str
    command: tuple[str, ...]
    minutes: float
    gpus: int = 1
    builds: bool = False


@dataclass(frozen=True)
class Running:
    """A task that was begun, on the GPUs that CUDA names so."""

    task: Task
    process: subprocess.Popen[bytes]
    gpus: Sequence[str]


def script(name: str, *arguments: str) -> tuple[str, ...]:
    """The command of a script of this folder."""
    return (sys.executable, str(HERE / name), *arguments)


def model(rows: int, weights: str) -> Task:
    """Decode for so many rows, or a prefill of 2,048 tokens for 0, with weights in some spellings."""
    case = ("--rows", str(rows), "--prefill", "0") if rows else ("--rows=", "--prefill", "2048")
    name = f"models-{rows or 'prefill'}-{weights.partition(',')[0]}"
    # A prefill with int8 weights compiles CUTLASS kernels with epilogues of the model's own.
    minutes = 7.5 if not rows and weights.startswith("int8") else 4.5
    return Task(name, script("models.py", "--out", "{out}.jsonl", "--weights", weights, *case), minutes)


SMALL = ("--shapes", "{shapes}", "--out", "{out}")
SEED = "1"
"""Of the problems that `verify` times again."""
TASKS = (
    Task("compile", script("compile.py", "--out", "{out}.json", "--repeats", "1"), 8),
    *(model(rows, weights) for weights in ("int8,int8-before", "bf16") for rows in (0, 1, 4, 16)),
    Task("live", script("live.py", "--out", "{out}.json"), 4),
    Task("prepare", script("h200_prepare.py", "--shapes", "{shapes}", "--table", "{table}", "--seed", SEED), 6, gpus=0,
         builds=True),
    Task("repeat", script("h200_repeat.py", *SMALL, "--minutes", "4"), 6, builds=True),
    Task("exhaustive", script("h200_exhaustive.py", *SMALL, "--problems=22", "--most=300", "--minutes=4"), 7,
         builds=True),
    Task("verify", (sys.executable, "-m", "gemmdb", "verify", "{table}", "--remeasure", "50", "--seed", SEED, "--json"),
         5, builds=True),
    Task("scaling", script("h200_scaling.py", *SMALL, "--problems=50", "--gpus", "{counts}"), 3.5, gpus=5, builds=True),
    Task("tests", (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib",
                   "-n", "24", "-q", "-rs", "-m", "not timed", "tests/gpu"), 6, gpus=2),
    Task("peers", script("h200_peers.py", "--out", "{out}.jsonl", "--table", "{table}", "--seconds", "200"), 5, gpus=6),
)  # fmt: skip


class Host:
    """The GPUs of this host, and what runs on them."""

    def __init__(self, options: argparse.Namespace, shapes: Path) -> None:
        self._options, self._shapes = options, shapes
        self.free, self.running = visible(), list[Running]()
        self.count = len(self.free)

    def has_room(self, task: Task) -> bool:
        """Whether as many GPUs are free as a task wants, or all."""
        return len(self.free) >= min(task.gpus, self.count)

    def begin(self, task: Task) -> None:
        """Run a task on free GPUs."""
        taken, self.free = self.free[: task.gpus], self.free[task.gpus :]
        out = self._options.out / task.name
        words = {
            "{out}": str(out), "{table}": str(self._options.table), "{shapes}": str(self._shapes),
            "{counts}": "1,4" if self.count >= 4 else f"1,{self.count}",
        }  # fmt: skip
        # An interrupt lets most of them write what they have.
        limit = ["timeout", "--signal=INT", "--kill-after=15", str(60 * task.minutes)]
        command = limit + [self._filled(argument, words) for argument in task.command]
        environment = {**os.environ, **self._cached(task)}
        if taken:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(taken)
        if not task.builds:
            environment.pop("TRITON_CACHE_DIR", None)
        with Path(f"{out}.log").open("wb") as log:
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
        self.running.append(Running(task, process, taken))
        print(f"{task.name} on {','.join(taken)}", flush=True)

    def tidy(self) -> None:
        """Free the GPUs of what has ended."""
        for one in [one for one in self.running if one.process.poll() is not None]:
            print(f"{one.task.name}: exit code {one.process.returncode}", flush=True)
            self.running.remove(one)
            self.free = [*one.gpus, *self.free]

    def _cached(self, task: Task) -> dict[str, str]:
        """Compile times are those of empty caches, and tasks must not wait for each other's locks."""
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


def main() -> None:
    """Run the tasks that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", type=Path, default=SHIPPED)
    parser.add_argument("--only", default="", help="names of tasks, or how they begin, in the order to run them in")
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--caches", default="/tmp/h200-figures", help="a folder for Inductor's caches")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    run(options, chosen(list(filter(None, options.only.split(",")))))


def chosen(names: Sequence[str]) -> list[Task]:
    """The tasks whose names begin so, in the order of `names`; all of them without any."""
    found = [task for name in names or [""] for task in TASKS if task.name.startswith(name)]
    return list(dict.fromkeys(found))


def run(options: argparse.Namespace, left: list[Task]) -> None:
    """Begin tasks in order, each as soon as it finds room, and wait for all of them."""
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
    """A file of 50 problems of the preset `h200`, which repeating and exhaustive search are measured on."""
    drawn = random.Random(7).sample(shapes.load("h200", "cuda")[:3900], 50)
    path.write_text("".join(json.dumps({"problem": problem.text}) + "\n" for problem in drawn))
    return path


if __name__ == "__main__":
    main()
