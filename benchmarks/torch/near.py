"""How long rung `near` takes for problems that no row is about, from a table and from its packed form.

    python -m benchmarks.torch near [TABLE...] [--problems 1000] [--out benchmarks/results/near.json]

TABLE holds rows of one NVIDIA GPU; default: the shipped H200 table. The problems are drawn from it, always the same.
Each is held out: the rung never uses the rows of the problem itself. `first` is the first answer of a process to a
problem after another table was read: every record is read and decoded again. `again` is the same with the records in
memory, as the second GEMM of a kind finds them. `repeated` is the second answer to the same question, which a
compile asks of a GEMM several times, and `best_kernel` what horizontal fusion asks after that. `read` is the part
of `first` that reads and decodes the records of all neighbours. `exact` looks up the same problems by their verdicts.
Times are milliseconds of CPU time, keys included. Other programs on the machine only add to them, so each problem
counts with the fastest of five rounds. The problems depend on the content of the table: only the figures of a table
and of its own packed form can be compared. `process` is what a new process spends on the wall clock: `imports`, `open`
(the table), `lookup` (its first one) and `second` (with another size); the fastest of ten.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gemmdb
from benchmarks.common import ROOT, SHIPPED, now
from gemmdb.cost import work
from gemmdb.devices import detect
from gemmdb.hit import Hit
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup import prediction, timings
from gemmdb.lookup.acceptance import exact, tuning
from gemmdb.lookup.acceptance.near import near
from gemmdb.lookup.ask import Ask
from gemmdb.settings import Policy
from gemmdb.table.reader import Table

ROUNDS = 5
PROCESS = """
import json, sys, time
begin = time.perf_counter()
from pathlib import Path
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup import answer
from gemmdb.settings import Policy
from gemmdb.table.catalog import Catalog, Source
from gemmdb.table.reader import Table
problem = Problem.parse(sys.argv[2])
imported = time.perf_counter()
path = Path(sys.argv[1])
table = Table.open(path, immutable=True)
catalog = Catalog([(Source(path, "shipped"), table)])
opened = time.perf_counter()
device = table.devices()[0]
times = []
for more in (1, 2):
    start = time.perf_counter()
    answer(Query(problem.resized(problem.m + more, problem.n, problem.k), device), catalog, Policy(sku=False))
    times.append(1e3 * (time.perf_counter() - start))
print(json.dumps([1e3 * (imported - begin), 1e3 * (opened - imported), *times]))
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("tables", nargs="*", type=Path, metavar="TABLE", help="default: the shipped H200 table")
    parser.add_argument("--problems", type=int, default=1000, help="problems that are asked for")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "near.json", help="the result")


def main(options: argparse.Namespace) -> None:
    """Time each table, write and print."""
    result = {
        "what": "milliseconds of one answer of rung near to a held-out problem",
        "date": now(),
        "versions": {
            "gemmdb": gemmdb.__version__, "python": platform.python_version(), "sqlite": sqlite3.sqlite_version,
            "cpu": detect.cpu().sku,
        },
        "tables": [measured(path, options.problems) for path in options.tables or [SHIPPED]],
    }  # fmt: skip
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def measured(path: Path, most: int) -> dict[str, Any]:
    """The figures of one table."""
    with Table.open(path, immutable=True) as table:
        (device,) = table.devices()
        problems = drawn(table, most)
        asked = partial(_times, table=table, device=device, problems=problems)
        ways: dict[str, Callable[[], list[float]]] = {
            "first": lambda: asked(near, before=_all),
            "again": lambda: asked(near, before=_prediction),
            "repeated": lambda: asked(near, before=near),
            "best_kernel": lambda: asked(_best, before=near),
            "read": lambda: [_read(table, device, problem) for problem in problems],
            "exact": lambda: asked(exact),
        }
        for way in ways.values():
            way()
        times = {name: _fastest(way) for name, way in ways.items()}
        answered = sum(near(_ask(table, device, problem)).hit is not None for problem in problems)
        return {
            "packed": table.packed, "file_mib": round(path.stat().st_size / 2**20, 2), "problems": len(problems),
            "answered": answered, **{name: _quantiles(found) for name, found in times.items()},
            "process": _process(path, problems[0], device),
        }  # fmt: skip


def _fastest(way: Callable[[], list[float]]) -> list[float]:
    """Of each problem the fastest of all rounds."""
    return [min(values) for values in zip(*(way() for _ in range(ROUNDS)), strict=True)]


def drawn(table: Table, most: int) -> list[Problem]:
    """The problems that are asked for, in random order, always the same."""
    found = sorted({problem for problem, _ in table.decided() if not problem.spec.batched}, key=lambda p: p.text)
    return random.Random(0).sample(found, min(most, len(found)))


def forget() -> None:
    """Forget all records that were read, and all answers."""
    timings._kept.clear()
    prediction.forget()


def _ask(table: Table, device: Device, problem: Problem) -> Ask:
    fresh = problem.resized(problem.m, problem.n, problem.k)  # Nothing about it has been computed yet.
    return Ask(Query(fresh, device), (table,), Policy(), None)


def _times(
    rung: Callable[[Ask], Any],
    table: Table,
    device: Device,
    problems: Sequence[Problem],
    before: Callable[[Ask], Any] | None = None,
) -> list[float]:
    """The milliseconds of `rung` at each problem, after `before` was called with the same question."""
    found = []
    for problem in problems:
        if before is not None:
            before(_ask(table, device, problem))
        ask = _ask(table, device, problem)
        start = time.thread_time_ns()
        rung(ask)
        found.append((time.thread_time_ns() - start) / 1e6)
    return found


def _all(ask: Ask) -> None:
    forget()


def _prediction(ask: Ask) -> None:
    """Read the records, and forget what was predicted from them."""
    near(ask)
    prediction.forget()
    work._settings.clear()


def _best(ask: Ask) -> Hit | None:
    return tuning.best_kernel(replace(ask, excluded=lambda config, rows: None))


def _process(path: Path, problem: Problem, device: Device) -> dict[str, float]:
    command = [sys.executable, "-c", PROCESS, str(path), problem.text, device.text]
    runs = [json.loads(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(10)]
    names = ("imports", "open", "lookup", "second")
    return {name: round(min(times), 1) for name, times in zip(names, zip(*runs, strict=True), strict=True)}


def _read(table: Table, device: Device, problem: Problem) -> float:
    """The milliseconds for the records of the neighbours of a problem, up to what a prediction is made from."""
    step = near(_ask(table, device, problem))
    used = [Problem.parse(one["problem"]) for one in step.evidence.get("neighbours", ())]
    forget()
    ask = _ask(table, device, problem)
    start = time.thread_time_ns()
    for one in used:
        here = timings.timings_of(ask, table, one)
        assert here is not None
        assert here.codes
    return (time.thread_time_ns() - start) / 1e6


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=100)
    return {"median": round(statistics.median(values), 3), "p90": round(cuts[89], 3), "p99": round(cuts[98], 3)}
