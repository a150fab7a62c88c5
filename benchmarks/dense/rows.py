"""Print what a build of dense GEMMs gains over ATen, by class of M, from its archives.

    python -m benchmarks.dense rows ROWS.jsonl.xz... [--json]

For each GEMM the verdict of its rows counts, as a lookup serves it from a table of them: the fastest kernel, or ATen
where none is faster for certain. Beside it stand the verdicts of the same rows with cuBLASLt's algorithms as the only
kernels, and with our own as the only ones. Each gain is the geometric mean over all GEMMs of the class, with the 95%
interval of a bootstrap over them; `kernels` is the share of GEMMs with another pick than ATen. A pick is the fastest of
several timed kernels, so its gain is a little too large. GEMMs with M outside the classes are left out.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.dense.report import bootstrap, mean
from benchmarks.dense.sample import STRATA, stratum
from gemmdb.generators.files import archive
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Measurement
from gemmdb.table.verdict import decide_all

KERNELS: Mapping[str, Callable[[Config], bool]] = {
    "all kernels": lambda config: True,
    "cuBLASLt's algorithms": lambda config: config.backend == "cublaslt",
    "own kernels": lambda config: config.backend not in ("aten", "cublaslt"),
}
"""Which kernels a build may pick besides ATen, by the title of a column."""

Gains = Mapping[str, float]
"""The speedup over ATen of the verdict for each of KERNELS."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("files", type=Path, nargs="+", metavar="ROWS", help="archives of one build")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def main(options: argparse.Namespace) -> None:
    """Print the figures."""
    found = figures(row for path in options.files for row in archive.read(path))
    print(json.dumps(found, indent=1) if options.json else "\n".join(text(found)))


def figures(rows: Iterable[Measurement]) -> dict[str, Any]:
    """The figures by class of M, and of all of them together, JSON-ready."""
    by_problem: dict[Problem, list[Measurement]] = defaultdict(list)
    low, high = STRATA[0][0], STRATA[-1][1]
    for row in rows:
        if low <= row.problem.m <= high:
            by_problem[row.problem].append(row)
    found = {problem: gains for problem, group in by_problem.items() if (gains := decided(group))}
    names = {stratum(m): None for m, _ in STRATA}
    classes = {name: [gains for problem, gains in found.items() if stratum(problem.m) == name] for name in names}
    classes["all"] = list(found.values())
    return {name: _figures(group) for name, group in classes.items() if group}


def decided(rows: Sequence[Measurement]) -> Gains:
    """The gains of one GEMM; empty if ATen was not timed."""
    found = {}
    for name, counts in KERNELS.items():
        verdicts = decide_all(row for row in rows if row.config == ATEN or counts(row.config))
        if not verdicts:
            return {}
        found[name] = verdicts[0].speedup
    return found


def _figures(group: Sequence[Gains]) -> dict[str, Any]:
    found: dict[str, Any] = {"GEMMs": len(group)}
    for name in KERNELS:
        gains = [one[name] for one in group]
        picked = sum(gain != 1.0 for gain in gains) / len(gains)
        found[name] = {"gain": mean(gains), "interval": bootstrap(gains), "kernels": picked}
    return found


def text(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The figures as Markdown."""
    yield f"| M | GEMMs | {' | | '.join(KERNELS)} | |"
    yield f"|---|---|{'---|---|' * len(KERNELS)}"
    for name, one in found.items():
        cells = (_cell(one[kernels]) for kernels in KERNELS)
        yield f"| {name} | {one['GEMMs']:,} | {' | '.join(cells)} |"


def _cell(one: Mapping[str, Any]) -> str:
    low, high = one["interval"]
    return f"{one['gain']:.3f}x ({low:.3f} to {high:.3f}) | {one['kernels']:.0%}"
