"""Tune the same problems twice, in processes that share only compiled kernels, and compare the two tables.

    python -m benchmarks.h200 repeat --out DIR [--shapes h200] [--problems 50] [--effort standard] [--minutes 5]
    python -m benchmarks.h200 repeat --compare ARCHIVE ARCHIVE...

DIR receives `first.db` and `second.db`, which hold the raw rows, and `repeat.json`. Each table is a `gemmdb build` of
the first problems of the shapes. Builds resume, so you can repeat the command. `--compare` prints how far each two of
some archives (`generators/files/archive.py`) agree. The target: of 50 problems at least 49 have the same pick or a pick
that is in the tie set of the other run, and the medians agree within 1%.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from typing import Any

from benchmarks.command import command
from benchmarks.common import write_shapes
from gemmdb.generators import shapes
from gemmdb.generators.files import archive
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Status
from gemmdb.table.reader import Table
from gemmdb.table.verdict import Verdict, pool
from gemmdb.table.writer import Store


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, help="build twice; the folder for the tables and the result")
    what.add_argument("--compare", type=Path, nargs="+", metavar="ARCHIVE", help="compare archives of finished builds")
    parser.add_argument("--shapes", default="h200", help="a preset, a workload or a file of shapes")
    parser.add_argument("--problems", type=int, default=50, help="number of problems, from the start of the shapes")
    parser.add_argument("--effort", default="standard", help="quick, standard or full")
    parser.add_argument("--minutes", type=float, default=5.0, help="time limit of each of the two builds")


def main(options: argparse.Namespace) -> None:
    """Build twice and compare, or compare archives; write and print the result."""
    if options.compare:
        print(json.dumps(pairwise(options.compare), indent=1))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    problems = shapes.load(options.shapes, "cuda")[: options.problems]
    listed = write_shapes(options.out / "problems.jsonl", problems)
    reports = [_build(options, listed, name) for name in ("first", "second")]
    with Table.open(options.out / "first.db") as first, Table.open(options.out / "second.db") as second:
        found = compare(first, second, problems)
    found["builds"] = reports
    (options.out / "repeat.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({name: value for name, value in found.items() if name not in ("problems", "builds")}, indent=1))


def _build(options: argparse.Namespace, listed: Path, name: str) -> dict[str, Any]:
    flags = {"arch": "sm90", "shapes": listed, "effort": options.effort, "minutes": options.minutes,
             "out": options.out / f"{name}.db"}  # fmt: skip
    child = command("gemmdb", "build", "--json", **flags)
    report: dict[str, Any] = json.loads(subprocess.run(child, check=True, stdout=subprocess.PIPE).stdout)
    return report


def pairwise(paths: Sequence[Path]) -> dict[str, Any]:
    """How far each two archived builds agree. Lists only the problems on which they differ."""
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tables = {path.name.partition(".")[0]: folder / f"{path.name}.db" for path in paths}
        for path, restored in zip(paths, tables.values(), strict=True):
            archive.restore([path], restored)
            stack.enter_context(Store.open(restored)).refresh()
        opened = {name: stack.enter_context(Table.open(path)) for name, path in tables.items()}
        problems = sorted(
            {row.problem for table in opened.values() for row in table.measurements()}, key=lambda p: p.text
        )
        for one, other in combinations(opened, 2):
            pair = compare(opened[one], opened[other], problems)
            pair["problems"] = [problem for problem in pair["problems"] if not problem["agree"]]
            found[f"{one}, {other}"] = pair
    return found


def compare(first: Table, second: Table, problems: Sequence[Problem]) -> dict[str, Any]:
    """How far two tables agree on the problems that have a verdict in both."""
    device = first.devices()[0]
    pairs = [(p, first.verdict(p, device), second.verdict(p, device)) for p in problems]
    both = [(p, one, other) for p, one, other in pairs if one and other]
    details = [_described(p, one, other) for p, one, other in both]
    picks = [abs(d["expected_us"][1] / d["expected_us"][0] - 1) for d in details]
    rows = [change for p, _, _ in both for change in _changes(first, second, p)]
    return {
        "compared": len(both),
        "same_pick": sum(d["picks"][0] == d["picks"][1] for d in details),
        "same_or_tied": sum(d["agree"] for d in details),
        "ratios": _shares([abs(d["speedup"][1] / d["speedup"][0] - 1) for d in details]),
        "picks": _shares(picks),
        "aten": _shares([abs(d["aten_us"][1] / d["aten_us"][0] - 1) for d in details]),
        "rows": _shares(rows),
        "problems": details,
    }


def _described(problem: Problem, one: Verdict, other: Verdict) -> dict[str, Any]:
    return {
        "problem": problem.text,
        "picks": [one.pick.text, other.pick.text],
        "agree": one.pick in other.ties or other.pick in one.ties,
        "expected_us": [one.expected_us, other.expected_us],
        "aten_us": [one.aten_us, other.aten_us],
        "speedup": [one.speedup, other.speedup],
    }


def _changes(first: Table, second: Table, problem: Problem) -> list[float]:
    """The relative difference of the medians of each config that both tables measured in full, pooled over its
    processes."""
    medians = []
    for table in (first, second):
        full = [row for row in table.rows(problem, table.devices()[0]) if row.status is Status.OK]
        medians.append({p.config: statistics.median(r.times.median_us for r in p.rows if r.times) for p in pool(full)})
    return [abs(medians[1][config] / us - 1) for config, us in medians[0].items() if config in medians[1]]


def _shares(changes: Sequence[float]) -> dict[str, float]:
    if not changes:
        return {}
    ordered = sorted(changes)
    return {
        "number": len(ordered),
        "within_1_percent": sum(change <= 0.01 for change in ordered) / len(ordered),
        "within_2_percent": sum(change <= 0.02 for change in ordered) / len(ordered),
        "median": statistics.median(ordered),
        "largest": ordered[-1],
    }
