"""Measure programs: cold and warm compiles, run times in turn, what gemmdb answered, errors.

    python -m benchmarks.programs measure --out FILE.jsonl [--programs 'llama-*,bert*'] [--ways default,gemmdb]
        [--jobs 4] [--gpus 0,1] [--cpus 2] [--seconds 450] [--again]
    python -m benchmarks.programs measure --out FILE.jsonl --cold [--repeat 3] ...

Each way compiles in a fresh process with empty caches (`cold_s`, the seconds of the first call). Then one process
compiles all ways again from those caches (`warm_s`), captures each as one CUDA graph, and replays the graphs in turn.
At last all ways are timed in turn as users run them, without a graph, the host's time included (`as_run`). Several
programs are compiled side by side, each with its share of the processors. On each GPU, only one of them at a time is
timed or times kernels for a compile; `cold_s` is without the seconds of waiting for that, `waited_s`. `torch_s` has
the seconds of torch's own phases, which nest, and `stats` those of gemmdb's. Ways: default, max-autotune, gemmdb (as
installed), gemmdb-aten, gemmdb-unconfirmed. max-autotune takes a minute or two per program. --cold does the cold
compiles alone, and --cpus gives each process processors of its own: compile times then depend the least on what runs
beside.

FILE gets one JSON line per program when it is done. Programs that FILE has in these ways are left out, so an
interrupted run resumes; those that failed are repeated, after the others. With --device cpu --size tiny it shows,
anywhere, that everything works.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.common import json_lines, without_root
from benchmarks.programs import plan, processes, ways
from benchmarks.programs.processes import Place
from benchmarks.programs.program import SIZES, Program
from benchmarks.programs.suite import chosen
from gemmdb.errors import InputError


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
    parser.add_argument("--pinned", help=argparse.SUPPRESS)
    parser.add_argument(
        "--programs",
        default="*",
        metavar="GLOBS",
        help="names in the order to take them, separated by commas; default: all",
    )
    parser.add_argument("--source", default="", metavar="FILE", help="programs of this Python file; default: the suite")
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
    parser.add_argument("--blame", type=int, default=3, help="GEMMs to suspect where gemmdb is slower; default: 3")
    parser.add_argument("--study", type=int, default=0, help="GEMMs to time also alone, for `states`; default: 0")
    parser.add_argument("--crowded", action="store_true", help="let what times kernels while it compiles not wait")
    parser.add_argument("--cold", action="store_true", help="only compile, with empty caches, and time nothing")
    parser.add_argument(
        "--repeat", type=positive, default=1, help="cold compiles of each way, in turn, with --cold; default: 1"
    )
    parser.add_argument("--cpus", type=positive, default=0, help="processors of each process; default: all, shared")
    parser.add_argument("--again", action="store_true", help="also programs that FILE has")


def main(options: argparse.Namespace) -> None:
    """Measure what is missing, or be one measuring process."""
    if options.child:
        if options.pinned:
            processes.pin(options.pinned)
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
    if options.repeat > 1 and not options.cold:
        raise InputError("--repeat: only cold compiles are repeated, with --cold")
    rows = [] if options.again else json_lines(options.out)
    processes.compile_sources()
    everything(options, names, plan.missing(chosen(options.programs, options.source), rows, names, options.cold))


def everything(options: argparse.Namespace, names: list[str], programs: Sequence[Program]) -> None:
    """Measure the programs, several at once, and append their rows."""
    gpus = [""] if options.device == "cpu" else options.gpus.split(",")
    places = processes.places(options.device, gpus, options.jobs, options.cpus)
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
    done = plan.already(json_lines(options.out), names, options.cold)
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
        **({"cpus": options.cpus} if options.cpus else {}),
        "ways": {},
    }
    if options.cold:
        return {**row, "cold": True, **compiles(program, names, place, options), "seconds": _since(began)}
    with tempfile.TemporaryDirectory(prefix="program-", ignore_cleanup_errors=True) as folder:
        for name in names:
            found = _compiled(program, name, place, Path(folder), options)
            if "skipped" in found:
                return {**row, **found}
            row["ways"][name] = found
        good = [name for name in names if "failure" not in row["ways"][name]]
        found = processes.in_process("warm", program, good, place, Path(folder), options) if good else {}
        for name, facts in found.pop("ways", {}).items():
            row["ways"].setdefault(name, {}).update(facts)
    return {**row, **found, "seconds": _since(began)}


def _since(began: float) -> float:
    return round(time.monotonic() - began, 1)


def _compiled(program: Program, name: str, place: Place, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The cold compile of one way, in a process of its own."""
    found = processes.in_process("cold", program, [name], place, folder, options)
    if "skipped" not in found:
        print(f"{program.name}: {name}: {compiled(found)}", flush=True)
    return found


def compiles(program: Program, names: list[str], place: Place, options: argparse.Namespace) -> dict[str, Any]:
    """The ways of one program, each compiled `--repeat` times with empty caches: the first way, the second, the second,
    the first, and so on. A way that failed is not compiled again. Or why the program is skipped."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for index in range(options.repeat):
        for name in reversed(names) if index % 2 else names:
            if found[name] and "failure" in found[name][-1]:
                continue
            with tempfile.TemporaryDirectory(prefix="program-", ignore_cleanup_errors=True) as folder:
                facts = _compiled(program, name, place, Path(folder), options)
            if "skipped" in facts:
                return facts
            found[name].append(facts)
    return {"ways": {name: repeated(one) for name, one in found.items()}}


def repeated(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What stands for several cold compiles of a way: the last of them with the medians of the seconds, and the seconds
    of each as `cold_all`. The failure if one failed."""
    last = found[-1]
    if "failure" in last or len(found) == 1:
        return last
    seconds = {name: statistics.median(one[name] for one in found) for name in ("cold_s", "enabling_s", "waited_s")}
    return {**last, **seconds, "cold_all": [one["cold_s"] for one in found]}


def compiled(found: Mapping[str, Any]) -> str:
    """What became of a cold compile, for a person who waits."""
    if "failure" in found:
        return str(found["failure"])
    return f"compiled in {found['cold_s']:.1f} s, and waited {found['waited_s']:.1f} s for other programs"


def line(row: dict[str, Any]) -> str:
    """One line about a row."""
    from benchmarks.programs.figures import summary

    return f"{row['program']}: " + (row.get("skipped") or json.dumps(summary(row)))
