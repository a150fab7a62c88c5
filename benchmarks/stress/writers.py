"""Write to one user table from 200 processes at once, as programs do that tune live.

    python -m benchmarks.stress writers [--processes 200] [--writes 5] [--out benchmarks/results/load/writers.json]

Each process adds the measurements of a GEMM and makes its verdict, as live tuning does, several times. The user's
table does not exist before. Reports the seconds of one write, waiting for the turn included, and whether the table
holds all rows and is sound at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import now
from benchmarks.stress import crowd, invented
from benchmarks.stress.rows import OUT
from gemmdb.generators.files.verify import verify
from gemmdb.table.reader import Table
from gemmdb.table.writer import record_live

CONFIGS = 6
"""ATen and what live tuning measures at most."""


def write(path: Path, count: int, number: int) -> list[float]:
    """The seconds of each write of one process. Raises TableError."""
    every = invented.configs(CONFIGS)
    found = []
    for problem in invented.problems(count, number * count):
        rows = list(invented.rows(problem, every, run=f"run-{number}"))
        found.append(crowd.timed(partial(record_live, path, rows)))
    return found


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--processes", type=int, default=200)
    parser.add_argument("--writes", type=int, default=5, help="writes of each process")
    parser.add_argument("--out", type=Path, default=OUT / "writers.json", help="the result")


def main(options: argparse.Namespace) -> None:
    """Write, check, and tell."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "user.db"
        seconds, told, errors = crowd.at_once(options.processes, partial(write, path, options.writes))
        with contextlib.closing(Table.open(path)) as table:
            rows = sum(1 for _ in table.measurements())
        findings = [str(finding) for finding in verify(path)]
    writes = sum(map(len, told))
    found: dict[str, Any] = {
        "date": now(), "cores": os.cpu_count(), "processes": options.processes, "seconds": round(seconds, 2),
        "writes": writes, "writes_per_s": round(writes / seconds, 1),
        "write_s": crowd.quantiles([second for one in told for second in one], 1.0),
        "rows": rows, "expected_rows": options.processes * options.writes * CONFIGS, "findings": findings,
        "errors": len(errors), "error": errors[0] if errors else "",
    }  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
