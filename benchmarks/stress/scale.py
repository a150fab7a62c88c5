"""Compute what a public registry of tables for all known GPUs would need, from what was measured. Prints Markdown.

    python -m benchmarks.stress scale [--contributions 10] [--share 0.1] [--users 1000000]

Measured: the shipped table of the H200 (tables/manifest.json), the last run of `rows` with the most rows, `readers` and
`writers` (benchmarks/results/load), and the GPU-seconds per problem of all builds behind that table
(benchmarks/results/h200/README.md). Assumed: one table for each GPU of the registry of devices, so many contributions
a month to each, each of such a share of its rows, and so many users who fetch one table once a month.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.common import ROOT, SHIPPED, json_lines
from benchmarks.stress.rows import OUT
from gemmdb.devices.registry import KNOWN

GPU_SECONDS = 5.0
"""GPU-seconds per problem of all builds behind the H200's table."""
SAMPLE, SAMPLE_SECONDS = 50, 2.0
"""Problems that a check times again, and GPU-seconds of each: what a build takes at its best."""
MANY = 100_000
"""Problems of a table that has far more than the H200's."""


@dataclass(frozen=True)
class Measured:
    """What was measured. `packed`, `full`: bytes per problem, and per row; `per_problem`: rows; `merge`, `pack`: CPU
    seconds per million rows; `peaks`: MiB of memory by step, for each run of `rows`, by its number of rows."""

    problems: int
    packed: float
    full: float
    per_problem: float
    merge: float
    pack: float
    lookup_us: float
    peaks: dict[int, dict[str, float]]


def measured() -> Measured:
    """From the results in the repository."""
    tables = json.loads((ROOT / "tables" / "manifest.json").read_text())["tables"]
    (shipped,) = (one for one in tables if one["file"] == SHIPPED.name)
    (device,) = shipped["devices"]
    problems, rows = sum(device["problems"].values()), device["measurements"]
    runs = sorted((run for run in json_lines(OUT / "rows.jsonl") if "packed_bytes" in run), key=lambda run: run["rows"])
    last = runs[-1]
    return Measured(
        problems, shipped["bytes"] / problems, last["file_bytes"] / last["rows"], rows / problems,
        last["merge"]["cpu_seconds"] * 1e6 / last["rows"], last["pack"]["cpu_seconds"] * 1e6 / last["rows"],
        last["lookup, packed"]["result"]["median"],
        {run["rows"]: {step: run[step]["peak_mib"] for step in ("make half", "merge", "pack")} for run in runs},
    )  # fmt: skip


def memory(found: Measured) -> Iterator[str]:
    """The peak memory of each step by number of rows, as Markdown."""
    yield "| rows | build, MiB | merge, MiB | pack, MiB |"
    yield "|---|---|---|---|"
    for rows, peaks in found.peaks.items():
        yield f"| {rows:,} | {' | '.join(f'{peak:.0f}' for peak in peaks.values())} |"


def needs(found: Measured, problems: int, contributions: int, share: float, users: int) -> dict[str, float]:
    """What such a registry needs with so many problems in each table, by the title of a row of the table."""
    rows = problems * found.per_problem
    tables, added = len(KNOWN), contributions * len(KNOWN)
    # A contribution is merged into the whole table: all of its rows are read and written.
    merged = added * rows * (1 + share) / 1e6
    return {
        "a table as it is served, MB": problems * found.packed / 1e6,
        "all tables as they are served, MB": tables * problems * found.packed / 1e6,
        "all rows behind them, GB": tables * rows * found.full / 1e9,
        "served a month, TB": users * problems * found.packed / 1e12,
        "served on average, Mbit/s": users * problems * found.packed * 8 / (30 * 86400) / 1e6,
        "merging and packing a month, CPU-hours": merged * (found.merge + found.pack) / 3600,
        "building all tables once, GPU-hours": tables * problems * GPU_SECONDS / 3600,
        "checking contributions a month, GPU-hours": added * SAMPLE * SAMPLE_SECONDS / 3600,
    }


def lines(options: argparse.Namespace) -> Iterator[str]:
    """Both tables of docs/scale.md."""
    found = measured()
    yield from memory(found)
    yield ""
    both = [needs(found, one, options.contributions, options.share, options.users) for one in (found.problems, MANY)]
    yield f"| {len(KNOWN)} GPUs | {found.problems:,} problems each | {MANY:,} problems each |"
    yield "|---|---|---|"
    for title in both[0]:
        yield f"| {title} | {' | '.join(rounded(one[title]) for one in both)} |"


def rounded(value: float) -> str:
    """Two significant digits."""
    digits = max(0, 1 - math.floor(math.log10(value)))
    return f"{round(value, 1 - math.floor(math.log10(value))):,.{digits}f}"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--contributions", type=int, default=10, help="contributions to each table a month")
    parser.add_argument("--share", type=float, default=0.1, help="what each adds, as a share of the table")
    parser.add_argument("--users", type=int, default=1_000_000, help="how many fetch a table each month")


def main(options: argparse.Namespace) -> None:
    """Print it."""
    print("\n".join(lines(options)))


def defaults() -> argparse.Namespace:
    """The options without a command line."""
    parser = argparse.ArgumentParser()
    arguments(parser)
    return parser.parse_args([])


def loads() -> dict[str, Any]:
    """The results of `readers` and `writers`."""
    return {name: json.loads((OUT / f"{name}.json").read_text()) for name in ("readers", "writers")}
