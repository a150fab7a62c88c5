"""How long rung `near` takes for problems that no row is about, from a table and from its packed form.

    python -m benchmarks.torch near [TABLE...] [--problems 1000] [--out benchmarks/results/near.json]

TABLE holds rows of one NVIDIA GPU; default: the shipped H200 table. The problems are drawn from it, always the same.
Each is held out: the rung never uses the rows of the problem itself. `first` is the first answer of a process to a
problem after another table was read: every record is read and decoded again. `again` is the same with the records in
memory, as the second product of a kind finds them. `read` is the part of `first` that reads and decodes the records of
all neighbours. `exact` looks up the same problems by their verdicts. Times are milliseconds of CPU time, keys
included. Other programs on the machine only add to them, so it is the fastest of five rounds by its median. The
problems depend on the content of the table: only the figures of a table and of its own packed form can be compared.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sqlite3
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gemmdb
from benchmarks.common import ROOT, SHIPPED, now
from gemmdb.devices import detect
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.ladder import remembering, timings
from gemmdb.ladder.ask import Ask
from gemmdb.ladder.exact import exact
from gemmdb.ladder.near import near
from gemmdb.settings import Policy
from gemmdb.table.reader import Table

ROUNDS = 5


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
        times: dict[str, list[dict[str, float]]] = {"first": [], "again": [], "read": [], "exact": []}
        for _ in range(ROUNDS):
            times["first"].append(_quantiles(_times(near, table, device, problems, forget)))
            times["again"].append(_quantiles(_times(near, table, device, problems, None, twice=True)))
            times["read"].append(_quantiles([_read(table, device, problem) for problem in problems]))
            times["exact"].append(_quantiles(_times(exact, table, device, problems, None)))
        answered = sum(near(_ask(table, device, problem)).hit is not None for problem in problems)
        return {
            "packed": table.packed, "file_mib": round(path.stat().st_size / 2**20, 2), "problems": len(problems),
            "answered": answered, **{name: min(found, key=lambda one: one["median"]) for name, found in times.items()},
        }  # fmt: skip


def drawn(table: Table, most: int) -> list[Problem]:
    """The problems that are asked for, in random order, always the same."""
    found = sorted({problem for problem, _ in table.decided() if not problem.spec.batched}, key=lambda p: p.text)
    return random.Random(0).sample(found, min(most, len(found)))


def forget() -> None:
    """Forget all records that were read, and all answers."""
    timings._kept.clear()
    remembering.forget()


def _ask(table: Table, device: Device, problem: Problem) -> Ask:
    fresh = problem.resized(problem.m, problem.n, problem.k)  # Nothing about it has been computed yet.
    return Ask(Query(fresh, device), (table,), Policy(), None)


def _times(
    rung: Callable[[Ask], Any],
    table: Table,
    device: Device,
    problems: Sequence[Problem],
    before: Callable[[], None] | None,
    twice: bool = False,
) -> list[float]:
    found = []
    for problem in problems:
        if before is not None:
            before()
        if twice:
            rung(_ask(table, device, problem))
        ask = _ask(table, device, problem)
        start = time.thread_time_ns()
        rung(ask)
        found.append((time.thread_time_ns() - start) / 1e6)
    return found


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
        assert here.groups
    return (time.thread_time_ns() - start) / 1e6


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=100)
    return {"median": round(statistics.median(values), 3), "p90": round(cuts[89], 3), "p99": round(cuts[98], 3)}
