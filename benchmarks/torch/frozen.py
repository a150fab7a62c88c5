"""Prove frozen mode: fresh processes on all GPUs run the same code, time nothing, and keep the gain.

    python -m benchmarks.torch frozen --folder FOLDER [--starts 20] [--gpus 2] [--each 4] [--seconds 580] [--size full]

`gemmdb freeze` runs once, on one GPU. Then come cold starts in fresh processes with empty caches, of frozen mode and of
default mode in turn; every third frozen start uses torch.use_deterministic_algorithms(True). At last each piece of the
program is timed in default mode, with gemmdb's defaults and frozen, in one process. A line is added to
FOLDER/lines.jsonl for each step; the same command continues there, `--seconds` begins nothing new after that time.
FOLDER/code has each different code. `--report` prints the result of what is there.

Wanted: one digest for each piece, no timings, at least 97% of the gain, and at most 1.02x of default mode's compile
time.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.command import command
from benchmarks.common import json_lines, software, visible_gpus, without_root
from benchmarks.torch import frozen_report
from benchmarks.torch.compile import in_process
from gemmdb.errors import InputError

LINES, FREEZE, CODE = "lines.jsonl", "freeze", "code"
"""What a folder has: the results, the folder of `gemmdb freeze`, the different codes."""
PIECES = ("decode-1", "decode-16", "symbolic", "int8")
DETERMINISTIC_EVERY = 3
"""One of so many frozen starts uses deterministic algorithms."""
BASE = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""What cuBLAS needs for deterministic algorithms, in all processes alike. It is its default size on Hopper."""
UNSET = {"GEMMDB_FROZEN": "", "GEMMDB_TABLES": "", "GEMMDB_ON_MISS": "", "GEMMDB_CONFIRM": "", "GEMMDB_USER_TABLE": ""}


@dataclass(frozen=True)
class Step:
    """One process. `label`: its name among the lines; `task`: `start` or `gain`; `job`: its arguments; `frozen`:
    whether GEMMDB_FROZEN is set."""

    label: str
    task: str
    job: Mapping[str, Any]
    frozen: bool = False


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--folder", type=Path, metavar="FOLDER", help="the results, and what was frozen")
    parser.add_argument("--starts", type=int, default=20, help="frozen cold starts; default mode has as many")
    parser.add_argument("--gpus", type=int, default=2, help="number of GPUs")
    parser.add_argument("--each", type=int, default=4, help="cold starts side by side on one GPU")
    parser.add_argument("--seconds", type=float, default=580, help="begin nothing new after that time")
    parser.add_argument("--budget", default="90s", help="of the build of `gemmdb freeze`")
    parser.add_argument("--size", choices=("full", "tiny"), default="full", help="of the program")
    parser.add_argument("--pieces", default=",".join(PIECES), help="of the program")
    parser.add_argument("--report", action="store_true", help="print the result of an earlier run only")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)


def main(options: argparse.Namespace) -> None:
    """Freeze, start, time, report."""
    if options.child:
        _child(options.child[0], json.loads(options.child[1]))
        return
    if options.folder is None:
        raise InputError("--folder: a folder for the results")
    if not options.report:
        run = Run(options)
        run.freeze()
        run.steps(starts(options), options.each)
        run.steps(gains(options), 1)
    print("\n".join(frozen_report.lines(json_lines(options.folder / LINES))))


def _child(task: str, job: dict[str, Any]) -> None:
    from benchmarks.torch import frozen_program

    if task == "gain":
        found = frozen_program.gain(job["name"], job["size"], job["deterministic"], Path(job["pins"]))
    else:
        found = frozen_program.start(job["names"], job["size"], job["gemmdb"], job["deterministic"])
    if task != "serve":
        print(json.dumps(found))


def starts(options: argparse.Namespace) -> Iterator[Step]:
    """Cold starts, frozen and default in turn. Both are deterministic or not alike."""
    job = {"names": options.pieces.split(","), "size": options.size}
    for number in range(options.starts):
        strict = number % DETERMINISTIC_EVERY == DETERMINISTIC_EVERY - 1
        for mode in ("frozen", "default") if number % 2 else ("default", "frozen"):
            asked = {**job, "gemmdb": mode == "frozen", "deterministic": [strict]}
            yield Step(f"{mode} {number}", "start", asked, mode == "frozen")


def gains(options: argparse.Namespace) -> Iterator[Step]:
    """A process for each piece, those with deterministic algorithms at last."""
    pins = str((options.folder / FREEZE / "frozen.sha256").absolute())
    for strict in (False, True):
        for name in options.pieces.split(","):
            job = {"name": name, "size": options.size, "deterministic": strict, "pins": pins}
            yield Step(f"{name}, deterministic" if strict else name, "gain", job)


class Run:
    """Adds lines to the file of a folder, on as many GPUs as there are."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder: Path = options.folder
        (self.folder / CODE).mkdir(parents=True, exist_ok=True)
        self.until = time.monotonic() + options.seconds
        self.done = {(one["kind"], one["label"]) for one in json_lines(self.folder / LINES) if "failure" not in one}
        self.gpus = visible_gpus()[: options.gpus] if _has_gpus() else [""]

    def freeze(self) -> None:
        """Run `gemmdb freeze` unless it is done. Raises InputError if it fails."""
        options = self.options
        if ("freeze", "") in self.done:
            return
        job = {"names": options.pieces.split(","), "size": options.size, "gemmdb": True, "deterministic": [False, True]}
        program = command("benchmarks.torch", "frozen", "--child", "serve", json.dumps(job))
        call = [sys.executable, "-m", "gemmdb", "freeze", "--json", "--wait", "0s", "--budget", options.budget,
                "--folder", str(self.folder / FREEZE), "--", *program]  # fmt: skip
        log = self.folder / "freeze.log"
        with tempfile.TemporaryDirectory() as caches, log.open("w") as errors:
            environment = {**os.environ, **self._environment(Path(caches)), "CUDA_VISIBLE_DEVICES": self.gpus[0]}
            began = time.monotonic()
            done = subprocess.run(call, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True, check=False)
        line = {"kind": "freeze", "label": "", "seconds": time.monotonic() - began, **software()}
        if done.returncode not in (0, 1) or not done.stdout:
            raise InputError(f"gemmdb freeze ended with exit code {done.returncode}: see {log}")
        kept = ("tables", "measured", "left", "outcomes", "changed")
        self._add({**line, **{name: json.loads(done.stdout)[name] for name in kept}})

    def steps(self, wanted: Iterator[Step], each: int) -> None:
        """Run the steps that have no line yet, `each` at once on every GPU."""
        free: queue.Queue[str] = queue.Queue()
        for gpu in self.gpus * each:
            free.put(gpu)
        left = [step for step in wanted if (step.task, step.label) not in self.done]
        with ThreadPoolExecutor(free.qsize()) as pool:
            asked: list[Future[dict[str, Any] | None]] = [pool.submit(self._step, step, free) for step in left]
            for one in as_completed(asked):
                if found := one.result():
                    self._add(found)

    def _step(self, step: Step, free: queue.Queue[str]) -> dict[str, Any] | None:
        if time.monotonic() > self.until:
            return None
        gpu = free.get()
        try:
            with tempfile.TemporaryDirectory() as name:
                caches = Path(name)
                call = command("benchmarks.torch", "frozen", "--child", step.task, json.dumps(step.job))
                environment = self._environment(caches, str(zlib.crc32(step.label.encode()) % 1000))
                if step.frozen:
                    environment["GEMMDB_FROZEN"] = str((self.folder / FREEZE / "frozen.sha256").absolute())
                found = in_process(call, caches, gpu, environment)
                found["home"] = sorted(str(one.relative_to(caches)) for one in (caches / "data").rglob("*.db"))
        finally:
            free.put(gpu)
        for piece, code in found.pop("codes", {}).items():
            (self.folder / CODE / f"{step.label.split()[0]}-{piece}-{found['digests'][piece][:12]}.py").write_text(code)
        return {"kind": step.task, "label": step.label, "gpu": gpu, **found}

    def _environment(self, caches: Path, seed: str = "0") -> dict[str, str]:
        """The variables of a process: empty caches, no table of the user, and its share of the compilers. `seed`: that
        of sets and dicts, which a server does not fix either."""
        cores = (os.cpu_count() or 2) // (len(self.gpus) * self.options.each)
        return {
            **UNSET, **BASE, "XDG_DATA_HOME": str(caches / "data"), "XDG_CACHE_HOME": str(caches / "cache"),
            "PYTHONHASHSEED": seed, "TORCHINDUCTOR_COMPILE_THREADS": str(min(32, max(2, cores))),
        }  # fmt: skip

    def _add(self, line: dict[str, Any]) -> None:
        with (self.folder / LINES).open("a") as file:
            file.write(without_root(line) + "\n")
        names = ("seconds", "compile_s", "timings", "benchmarked", "errors", "speedup", "left", "failure")
        brief = {name: line[name] for name in names if line.get(name)}
        print(f"{line['kind']} {line['label']}: {json.dumps(brief)}", flush=True)


def _has_gpus() -> bool:
    try:
        return bool(visible_gpus())
    except (FileNotFoundError, OSError):
        return False
