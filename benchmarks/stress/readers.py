"""Look up in one table from 64 processes at once, while nobody writes it and while somebody does.

    python -m benchmarks.stress readers [--processes 64] [--lookups 2000] [--out benchmarks/results/load/readers.json]

Each process opens the table, as the first compile of a program does, and asks for problems, each a new object: what a
compile asks of the tables, without torch. The table has 50 rows for each of 2,000 problems. The writer adds a problem
and makes its verdict again and again, with a tenth of a second between, as a build does, or without a pause, which no
program does. `first_ms`: opening and the first answer. `lookup_us`: the others. `errors`: how many processes failed,
because a lookup waits at most five seconds while others write.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import now
from benchmarks.stress import crowd, invented
from benchmarks.stress.rows import OUT, make
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

PROBLEMS = 2_000


def look_up(path: Path, count: int, number: int) -> list[float]:
    """The seconds of each lookup of one process. Raises TableError, AssertionError for a miss."""
    found = []
    with Table.open(path) as table:
        for problem in invented.problems(count, number % 7 * 10):

            def ask() -> None:
                assert table.verdict(problem, invented.DEVICE) is not None  # noqa: B023

            found.append(crowd.timed(ask))
    return found


def write(path: Path, pause_s: float, stop: Any) -> None:
    """Add problems until told to stop."""
    every = invented.configs()
    with Store.open(path) as store:
        for problem in invented.problems(10**6, 10**6):
            if stop.wait(pause_s):
                return
            store.add(list(invented.rows(problem, every)))
            store.refresh()


def measured(path: Path, processes: int, count: int) -> dict[str, Any]:
    """What so many readers tell."""
    seconds, told, errors = crowd.at_once(processes, partial(look_up, path, count))
    lookups = sum(map(len, told))
    return {
        "seconds": round(seconds, 2), "lookups": lookups, "lookups_per_s": round(lookups / seconds),
        "first_ms": crowd.quantiles([one[0] for one in told], 1e-3),
        "lookup_us": crowd.quantiles([second for one in told for second in one[1:]], 1e-6),
        "errors": len(errors), "error": errors[0] if errors else "",
    }  # fmt: skip


@contextlib.contextmanager
def writing(path: Path, pause_s: float) -> Iterator[None]:
    """While this lasts, one process writes."""
    context = multiprocessing.get_context("fork")
    stop = context.Event()
    writer = context.Process(target=write, args=(path, pause_s, stop))
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--lookups", type=int, default=1_400, help="lookups of each process")
    parser.add_argument("--out", type=Path, default=OUT / "readers.json", help="the result")


def main(options: argparse.Namespace) -> None:
    """Measure without and with a writer, write and print."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.db"
        make(path, 0, PROBLEMS)
        found: dict[str, Any] = {"date": now(), "cores": os.cpu_count(), "processes": options.processes}
        found["alone"] = measured(path, options.processes, options.lookups)
        for name, pause_s in (("beside a writer", 0.1), ("beside a writer without a pause", 0.0)):
            with writing(path, pause_s):
                found[name] = measured(path, options.processes, options.lookups)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
