"""Measure programs: cold and warm compiles, run times in turn, what gemmdb answered, errors.

    python -m benchmarks.programs measure --out FILE.jsonl [--programs 'llama-*,bert*'] [--ways default,gemmdb]
        [--jobs 4] [--gpus 0,1] [--seconds 450] [--again]

Each way compiles in a fresh process with empty caches (`cold_s`, the seconds of the first call). Then one process
compiles all ways again from those caches (`warm_s`), captures each as one CUDA graph, and replays the graphs in turn.
Several programs are compiled side by side, each with its share of the processors. On each GPU, only one of them at a
time is timed or times kernels for a compile; `cold_s` is without the seconds of waiting for that, `waited_s`. Ways:
default, max-autotune, gemmdb (as installed), gemmdb-aten, gemmdb-unconfirmed. max-autotune takes a minute or two per
program. FILE gets one JSON line per program when it is done. Programs that FILE has in these ways are left out, so an
interrupted run resumes; those that failed are repeated, after the others. With --device cpu --size tiny it shows,
anywhere, that everything works.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.command import command
from benchmarks.common import json_lines, without_root
from benchmarks.programs import failures, plan, ways
from benchmarks.programs.program import SIZES, Program
from benchmarks.programs.suite import chosen
from gemmdb.errors import InputError

INNERMOST = 8
"""How many functions a process that takes too long is said to be in."""
PATIENCE_S = 5.0
"""How long it may take to say so."""


def positive(text: str) -> int:
    """A number of at least 1. Raises ArgumentTypeError otherwise."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"not a number of at least 1: {text}")
    return int(text)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, metavar="FILE", help="the result; lines are appended")
    what.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument(
        "--programs",
        default="*",
        metavar="GLOBS",
        help="names in the order to take them, separated by commas; default: all",
    )
    parser.add_argument("--ways", default="default,gemmdb", help=f"of {', '.join(ways.WAYS)}")
    parser.add_argument("--size", choices=SIZES, default="gpu", help="default: gpu")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda")
    parser.add_argument("--gpus", default="0", help="as CUDA_VISIBLE_DEVICES names them; default: 0")
    parser.add_argument("--jobs", type=int, default=4, help="programs side by side on each GPU; default: 4")
    parser.add_argument(
        "--tuned", type=positive, default=2, help="of them, those that tune while they compile; default: 2"
    )
    parser.add_argument("--seconds", type=float, default=450, help="begin no further program after that; default: 450")
    parser.add_argument("--timeout", type=float, default=240, help="seconds of one process; default: 240")
    parser.add_argument("--timing", type=float, default=3, help="seconds of timing per program; default: 3")
    parser.add_argument("--blame", type=int, default=3, help="products to suspect where gemmdb is slower; default: 3")
    parser.add_argument("--study", type=int, default=0, help="products to time also alone, for `states`; default: 0")
    parser.add_argument("--crowded", action="store_true", help="let what times kernels while it compiles not wait")
    parser.add_argument("--again", action="store_true", help="also programs that FILE has")


@dataclass(frozen=True)
class Place:
    """Where a program is measured: the device, the GPU's name for CUDA_VISIBLE_DEVICES, its lock."""

    device: str
    gpu: str

    @property
    def lock(self) -> Path:
        """The lock, which all measurements on this machine share."""
        return Path(tempfile.gettempdir()) / f"gemmdb-programs-{self.gpu or self.device}.lock"


def main(options: argparse.Namespace) -> None:
    """Measure what is missing, or be one measuring process."""
    if options.child:
        from benchmarks.programs import work, worker

        faulthandler.register(signal.SIGUSR1)
        task, text = options.child
        job = json.loads(text)
        reply = getattr(worker, task)(work.Job(**{**job, "ways": tuple(job["ways"])}))
        Path(job["folder"], "reply.json").write_text(json.dumps(reply))
        return
    names = options.ways.split(",")
    if unknown := set(names) - set(ways.WAYS):
        raise InputError(f"--ways: known are {', '.join(ways.WAYS)}, not {', '.join(sorted(unknown))}")
    rows = [] if options.again else json_lines(options.out)
    everything(options, names, plan.missing(chosen(options.programs), rows, names))


def everything(options: argparse.Namespace, names: list[str], programs: Sequence[Program]) -> None:
    """Measure the programs, several at once, and append their rows."""
    gpus = [""] if options.device == "cpu" else options.gpus.split(",")
    places = [Place(options.device, gpu) for _ in range(options.jobs) for gpu in gpus]
    until, writing = time.monotonic() + options.seconds, threading.Lock()
    left = plan.Plan(list(programs), options.tuned)

    def work(place: Place) -> None:
        while program := left.take(place.gpu):
            try:
                if time.monotonic() > until:
                    left.stop()
                    break
                row = measured(program, names, place, options)
                with writing, options.out.open("a") as file:
                    file.write(without_root(row) + "\n")
                print(line(row), flush=True)
            finally:
                left.done(place.gpu, program)

    options.out.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(len(places)) as pool:
        list(pool.map(work, places))
    done = plan.already(json_lines(options.out), names)
    without = [program.name for program in programs if program.name not in done]
    print(f"{len(without)} left" + (f": {', '.join(without)}" if without else ""))


def measured(program: Program, names: list[str], place: Place, options: argparse.Namespace) -> dict[str, Any]:
    """The row of one program."""
    began = time.monotonic()
    about = {"program": program.name, "collection": program.collection, "kind": program.kind, "size": options.size}
    row: dict[str, Any] = {
        **about,
        "device_kind": place.device,
        "jobs": options.jobs,
        "crowded": options.crowded,
        "ways": {},
    }
    with tempfile.TemporaryDirectory(prefix="program-", ignore_cleanup_errors=True) as folder:
        for name in names:
            found = in_process("cold", program, [name], place, Path(folder), options)
            if "skipped" in found:
                return {**row, **found}
            row["ways"][name] = found
            print(f"{program.name}: {name}: {compiled(found)}", flush=True)
        good = [name for name in names if "failure" not in row["ways"][name]]
        found = in_process("warm", program, good, place, Path(folder), options) if good else {}
        for name, facts in found.pop("ways", {}).items():
            row["ways"].setdefault(name, {}).update(facts)
    return {**row, **found, "seconds": round(time.monotonic() - began, 1)}


def compiled(found: Mapping[str, Any]) -> str:
    """What became of a cold compile, for a person who waits."""
    if "failure" in found:
        return str(found["failure"])
    return f"compiled in {found['cold_s']:.1f} s, and waited {found['waited_s']:.1f} s for other programs"


def in_process(
    task: str, program: Program, names: list[str], place: Place, folder: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """What `worker.TASK` returns in a process of its own; the reason as `failure` if it ends otherwise."""
    where = {"device": place.device, "folder": str(folder), "lock": str(place.lock)}
    how = {"size": options.size, "seconds": options.timing, "blame": options.blame, "crowded": options.crowded,
           "study": options.study}  # fmt: skip
    job = {"program": program.name, "ways": names, **where, **how}
    reply, log = folder / "reply.json", folder / f"{task}-{names[0]}.log"
    reply.unlink(missing_ok=True)
    call = command("benchmarks.programs", "measure", "--child", task, json.dumps(job))
    compilers = max((os.cpu_count() or 1) // (options.jobs * len(options.gpus.split(","))), 2)
    environ = ways.base_environment(os.environ, place.gpu, compilers)
    with log.open("wb") as output:
        child = subprocess.Popen(call, env=environ, stdout=output, stderr=output, start_new_session=True)
        try:
            code = child.wait(options.timeout)
        except subprocess.TimeoutExpired:
            return {"failure": f"{task}: no answer within {options.timeout:.0f} s; it was in {doing(child, log)}"}
        finally:
            _end(child)
    if code == 0 and reply.exists():
        found: dict[str, Any] = json.loads(reply.read_text())
        return found
    return {"failure": f"{task}: exit {code}: {failures.ended(log.read_text(errors='replace'))}"}


def doing(child: subprocess.Popen[bytes], log: Path) -> str:
    """The innermost functions of the main thread of a process, which writes them to its log when it is told to. That
    may take a while: a driver that looks for memory does not let it."""
    child.send_signal(signal.SIGUSR1)
    until, found = time.monotonic() + PATIENCE_S, list[tuple[str, str, str]]()
    while not found and time.monotonic() < until:
        time.sleep(0.5)
        _, _, last = log.read_text(errors="replace").rpartition("Current thread")
        found = re.findall(r'File ".*?([^/"]+)", line (\d+) in (\S+)', last)
    return ", ".join(f"{name} ({file}:{number})" for file, number, name in found[:INNERMOST]) or "no Python code"


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started, the compilers of Inductor too."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def line(row: dict[str, Any]) -> str:
    """One line about a row."""
    from benchmarks.programs.figures import summary

    return f"{row['program']}: " + (row.get("skipped") or json.dumps(summary(row)))
