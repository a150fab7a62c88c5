"""Make a table of ten million rows, merge it, pack it, and look up in it: seconds, and the most memory of each step.

    python -m benchmarks.stress rows [--rows 10000000] [--folder DIR] [--out benchmarks/results/load/rows.jsonl]

The rows are of as many problems as give 50 rows each, written as a build writes them: a few thousand at a time, then
the verdicts. `merge` unites two halves of the table. Each step runs in a process of its own, whose peak resident memory
is what the system says. `lookup` is the time of a lookup by distinct problems from all of the table, the making of the
key included: in the first round, and warm, when the same problems are asked for again and the reader remembers what it
read. The result is one line of JSON per run: a run with a tenth of the rows tells whether memory grows with them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, now
from benchmarks.stress import invented
from gemmdb import Measurement
from gemmdb.generators.files.merge import merge
from gemmdb.generators.files.pack import pack
from gemmdb.table import lookup_cache
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

OUT = ROOT / "benchmarks" / "results" / "load"
CHUNK = 5_000
"""Rows of one transaction."""
TIMED = 20_000
"""Lookups of one round."""
ROUNDS = 5


def step(act: Callable[[], Any]) -> dict[str, Any]:
    """What `act` returns, when it runs in a process of its own: its seconds, CPU seconds, and MiB of peak memory."""
    read, write = os.pipe()
    sys.stdout.flush()
    if not (pid := os.fork()):
        os.close(read)
        start, answer = time.monotonic(), _answer(act)
        used = resource.getrusage(resource.RUSAGE_SELF)
        found = {
            "seconds": round(time.monotonic() - start, 1),
            "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
            "peak_mib": round(used.ru_maxrss / 1024, 1),
            "result": answer,
        }
        with os.fdopen(write, "w") as pipe:
            pipe.write(json.dumps(found))
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    if not text:
        raise SystemExit("a step failed; its traceback is above")
    return dict(json.loads(text))


def _answer(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def make(path: Path, start: int, count: int) -> int:
    """Write the rows of so many problems, and their verdicts; returns the size of the file in bytes."""
    every = invented.configs()
    rows = (row for problem in invented.problems(count, start) for row in invented.rows(problem, every))
    with Store.open(path) as store:
        for chunk in chunks(rows):
            store.add(chunk)
        store.refresh()
    return path.stat().st_size


def chunks(rows: Iterable[Measurement]) -> Iterable[list[Measurement]]:
    """The rows in lists of CHUNK."""
    chunk: list[Measurement] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    yield chunk


def look_up(path: Path, count: int, immutable: bool) -> dict[str, Any]:
    """Microseconds of one lookup: the quantiles of the fastest warm round, and the medians of all; the first is cold.
    Each round asks for the same problems, evenly spread over all `count`, as new objects. After the first one the file
    is left alone until its time has been seen for long enough."""
    rounds = []
    numbers = range(0, count, max(count // TIMED, 1))[:TIMED]
    with contextlib.closing(Table.open(path, immutable=immutable)) as table:
        for turn in range(ROUNDS + 1):
            if turn == 1:
                time.sleep(lookup_cache.SETTLED_S)
            times = []
            for number in numbers:
                (problem,) = invented.problems(1, number)
                start = time.perf_counter_ns()
                verdict = table.verdict(problem, invented.DEVICE)
                times.append((time.perf_counter_ns() - start) / 1e3)
                assert verdict is not None
            rounds.append(times)
    cuts = statistics.quantiles(min(rounds[1:], key=statistics.median), n=100)
    found = {"median": round(cuts[49], 2), "p10": round(cuts[9], 2), "p99": round(cuts[98], 2)}
    return {**found, "medians": [round(statistics.median(times), 2) for times in rounds]}


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the table")
    parser.add_argument("--keep", action="store_true", help="keep the tables")
    parser.add_argument("--folder", type=Path, help="where the tables are made; they take 1 KiB a row")
    parser.add_argument("--out", type=Path, default=OUT / "rows.jsonl", help="the file of results")


def main(options: argparse.Namespace) -> None:
    """Do the steps and append the result, after each step as well."""
    count = options.rows // invented.CONFIGS
    folder = Path(tempfile.mkdtemp(prefix="rows-", dir=options.folder))
    half, other, whole, packed = (folder / f"{name}.db" for name in ("half", "other", "whole", "packed"))
    found: dict[str, Any] = {"date": now(), "rows": count * invented.CONFIGS, "problems": count}
    steps: dict[str, Callable[[], Any]] = {
        "make half": lambda: make(half, 0, count // 2),
        "make the other half": lambda: make(other, count // 2, count - count // 2),
        "merge": lambda: merge([half, other], whole),
        "lookup, may be written": lambda: look_up(whole, count, False),
        "lookup, immutable": lambda: look_up(whole, count, True),
        "pack": lambda: pack(whole, packed).times,
        "lookup, packed": lambda: look_up(packed, count, True),
    }
    try:
        for name, act in steps.items():
            found[name] = step(act)
            print(name, json.dumps(found[name]), flush=True)
        found["file_bytes"], found["packed_bytes"] = whole.stat().st_size, packed.stat().st_size
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with options.out.open("a") as file:
            file.write(json.dumps(found) + "\n")
