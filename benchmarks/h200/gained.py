"""Print what the GEMMs of an archive gained by its rows: how much faster the verdict with them is than the verdict of
all rows before them.

    python -m benchmarks.h200 gained benchmarks/results/h200/2026-11-22/rows-34.jsonl.xz

Rows of kernels that have changed since do not count. GEMMs without a verdict before are left out.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

from benchmarks.h200.report import newest_verdict, table
from benchmarks.h200.results import archives
from gemmdb.generators.files import archive
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Measurement

CLASSES = (1, 8, 16, 32, 64, 256, 1024, 4096)
"""The largest M of each class."""


@dataclass(frozen=True)
class Gain:
    """What one GEMM gained: the time of the verdict before over that with the new rows. `new`: whether a kernel with a
    row in the archive wins now."""

    problem: Problem
    ratio: float
    new: bool


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("archive", type=Path, help="an archive of a folder of results")


def main(options: argparse.Namespace) -> None:
    """Read, compare and print."""
    earlier = [path for path in archives(options.archive.parent) if path.name < options.archive.name]
    now = list(archive.read(options.archive))
    wanted = {row.problem for row in now}
    before = (row for path in earlier for row in archive.read(path) if row.problem in wanted)
    print(told(list(gains(before, now))))


def gains(before: Iterable[Measurement], now: Iterable[Measurement]) -> Iterator[Gain]:
    """Yield what each GEMM gained that has a verdict before."""
    old, new = _by_problem(before), _by_problem(now)
    for problem, rows in new.items():
        then, since = newest_verdict(old[problem]), newest_verdict([*old[problem], *rows])
        if then is not None and since is not None:
            yield Gain(problem, then.ratio / since.ratio, any(row.config == since.pick for row in rows))


def _by_problem(rows: Iterable[Measurement]) -> dict[Problem, list[Measurement]]:
    found: dict[Problem, list[Measurement]] = defaultdict(list)
    for row in rows:
        if row.config.is_current(row.toolchain.source):
            found[row.problem].append(row)
    return found


def told(found: Iterable[Gain]) -> str:
    """The table to read, by classes of M."""
    classes: dict[str, list[Gain]] = defaultdict(list)
    for gain in sorted(found, key=lambda one: one.problem.m):
        last = next((last for last in CLASSES if gain.problem.m <= last), 0)
        classes[f"up to {last:,}" if last else "more"].append(gain)
        classes["all"].append(gain)
    order = [*(name for name in classes if name != "all"), "all"]
    return table(
        ("M", "GEMMs", "gained", "most", "least", "a new row wins"),
        ([name, len(own), f"{geometric_mean([one.ratio for one in own]):.3f}x", f"{max(one.ratio for one in own):.2f}x",
          f"{min(one.ratio for one in own):.2f}x", sum(one.new for one in own)]
         for name in order if (own := classes[name])),
    )  # fmt: skip
