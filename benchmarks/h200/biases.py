"""Print how much of its gain over ATen a config loses by a bias, from rows of one GEMM with and without it.

    python -m benchmarks.h200 biases [--fusion pointwise:math]

Per config that beats ATen without the bias: its time relative to ATen's with the bias, divided by the same without. The
figures are the median and the ends of the middle 80% and 90%. Emitted code counts where it was timed.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks.h200.results import archives, newest
from gemmdb.generators.files import archive
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Measurement, Status
from gemmdb.table.reader import Table

QUANTILES = (0.05, 0.1, 0.5, 0.9, 0.95)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--fusion", default="", help="only problems with this fusion context; default: all")


def main(options: argparse.Namespace) -> None:
    """Print the quantiles."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "all.db"
        archive.restore(archives(newest()), path, lambda row: row.problem.op in ("mm", "addmm"))
        with contextlib.closing(Table.open(path)) as table:
            found = sorted(lost(ratios(table.measurements()), options.fusion))
    print(f"{len(found)} configs")
    for share in QUANTILES if found else ():
        print(f"{share:.0%}: {found[min(int(share * len(found)), len(found) - 1)]:.3f}")


def ratios(rows: Iterator[Measurement]) -> dict[Problem, dict[Config, float]]:
    """The median ratio to ATen by problem and config, of right rows with a cold cache."""
    taken: dict[tuple[Problem, Config], dict[bool, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        steady = row.status is Status.OK and not row.disturbed and row.protocol.l2 == "cold"
        if steady and row.times and row.config != ATEN:
            taken[row.problem, row.config][row.emitted].append(row.times.ratio)
    found: dict[Problem, dict[Config, float]] = defaultdict(dict)
    for (problem, config), by_kind in taken.items():
        found[problem][config] = median(by_kind[True] or by_kind[False])
    return found


def lost(found: dict[Problem, dict[Config, float]], fusion: str) -> Iterator[float]:
    """The ratio with a bias over that without, of each config that beats ATen without."""
    for problem, biased in found.items():
        if problem.bias is None or problem.bias.kind != "1d" or problem.scalars != "unit":
            continue
        if fusion and problem.fusion != fusion:
            continue
        alone = found.get(replace(problem, op="mm", bias=None), {})
        yield from (ratio / alone[config] for config, ratio in biased.items() if alone.get(config, 1.0) < 1)
