"""Say what the rows of `h200_build.py` amount to: geometric means against ATen and shares of the streaming-read floor.

    python benchmarks/h200_report.py benchmarks/results/h200/2026-11-20b

A problem's time is its verdict's pick, both processes pooled, as a table of these rows has it. The floor is a streaming
read of the weight's bytes under the same protocol; a share above 1 means a kernel that streams better than that one.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from h200_import import measurements

from gemmdb.measurement import Measurement
from gemmdb.problem import Problem
from gemmdb.verdict import Verdict, decide

GROUPS: tuple[tuple[str, Callable[[Problem], bool]], ...] = (
    ("mixed_mm, M <= 16", lambda p: p.op == "mixed_mm" and p.m <= 16),
    ("mixed_mm, M <= 64", lambda p: p.op == "mixed_mm" and p.m <= 64),
    ("mixed_mm, all M", lambda p: p.op == "mixed_mm"),
    ("mixed_mm, M <= 16, weight >= 48 MB", lambda p: p.op == "mixed_mm" and p.m <= 16 and p.n * p.k >= 48e6),
    ("int_mm, with scale", lambda p: p.op == "int_mm" and p.fusion == "scale"),
    ("int_mm, alone", lambda p: p.op == "int_mm" and p.fusion == "none"),
    ("int_mm, all", lambda p: p.op == "int_mm"),
    ("mm, M <= 64", lambda p: p.op == "mm" and p.m <= 64),
    ("mm, all M", lambda p: p.op == "mm"),
)


def mean(values: Iterable[float]) -> float:
    """The geometric mean."""
    return math.exp(statistics.mean(math.log(value) for value in values))


def read(folder: Path) -> tuple[dict[Problem, Verdict], dict[Problem, float], list[Measurement]]:
    """Verdicts, floors in microseconds, and all rows of a folder of results."""
    rows = list(measurements(folder / "rows.jsonl.gz"))
    by_problem: dict[Problem, list[Measurement]] = defaultdict(list)
    for row in rows:
        by_problem[row.problem].append(row)
    found = {problem: decide(group) for problem, group in by_problem.items()}
    with gzip.open(folder / "summary.jsonl.gz", "rt") as file:
        lines = [json.loads(line) for line in file]
    floors = {Problem.parse(line["problem"]): float(line["floor_us"]) for line in lines if line["floor_us"]}
    return {problem: verdict for problem, verdict in found.items() if verdict}, floors, rows


def repeatability(rows: list[Measurement]) -> str:
    """How far the medians of the same config differ between the two processes."""
    medians: dict[tuple[Problem, str], dict[str, float]] = defaultdict(dict)
    for row in rows:
        if row.times and row.status == "ok":
            medians[row.problem, row.config.text][row.run] = row.times.median_us
    pairs = [list(found.values()) for found in medians.values() if len(found) == 2]
    changes = sorted(abs(second / first - 1) for first, second in pairs)
    if not changes:
        return "no config was timed in two processes"
    within = [sum(change <= limit for change in changes) / len(changes) for limit in (0.01, 0.02)]
    return (
        f"{len(changes)} configs in two processes: {within[0]:.0%} within 1%, {within[1]:.0%} within 2%, "
        f"median {changes[len(changes) // 2]:.2%}, largest {changes[-1]:.1%}"
    )


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    verdicts, floors, rows = read(parser.parse_args().folder)
    print("| problems | number | vs ATen | worst | ATen picked | share of the floor | smallest share |")
    print("|---|---|---|---|---|---|---|")
    for name, member in GROUPS:
        group = [verdict for problem, verdict in verdicts.items() if member(problem)]
        if group:
            shares = [floors[v.problem] / v.expected_us for v in group if v.problem in floors]
            aten = sum(v.pick.backend == "aten" for v in group)
            speed = f"{mean(v.speedup for v in group):.2f}x | {min(v.speedup for v in group):.2f}x"
            print(f"| {name} | {len(group)} | {speed} | {aten} | {mean(shares):.2f} | {min(shares):.2f} |")
    print()
    print(repeatability(rows))


if __name__ == "__main__":
    main()
