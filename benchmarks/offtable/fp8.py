"""Off the table, GEMMs of fp8 or with weights in groups: what does rung `near` answer for problems that no row is
about? Runs on the CPU, in minutes.

    python -m benchmarks.offtable fp8 [FOLDER...] [--groups] [--out FILE.json]

FOLDER holds archives; default: all folders of benchmarks/results/h200. Problems are held out as by `near`: one at a
time (`m`), and all of an (N, K) pair at once (`nk`). Rung `near` asks no trees about fp8, so nothing is fitted without
them, nor are the rates of `gemmdb.cost.sizes`. Of the answers other than ATen that were timed on the problem, `gain` is
the geometric mean over ATen, and `slower` counts those that took over 1% more than ATen. `best` is the gain of the
fastest config that was timed. `speed` is that of all answers relative to the best config, with ATen where nothing is
served. `--groups` holds out the problems of an H200 with weights in groups and with block scales.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.h200 import results
from benchmarks.offtable import held_out
from benchmarks.offtable.near import answer, split
from gemmdb.cost import sizes
from gemmdb.kernels.config import ATEN
from gemmdb.table.measurement import Measurement


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("folder", type=Path, nargs="*", metavar="FOLDER", help="archives; default: all H200 results")
    parser.add_argument(
        "--groups", action="store_true", help="weights in groups and block scales on an H200, instead of all fp8"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the summary and all answers as JSON")


def main(options: argparse.Namespace) -> None:
    """Hold out, print, write."""
    paths = [path for folder in options.folder or results.folders() for path in results.archives(folder)]
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole.db"
        held_out.united(paths, whole, functools.partial(_is_kept, options.groups))
        found = {kind: list(answers(whole, kind)) for kind in ("m", "nk")}
    result = {kind: summary(rows) for kind, rows in found.items()}
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.write_text(json.dumps({"summary": result, "answers": found}, indent=1) + "\n")


def _is_kept(groups: bool, row: Measurement) -> bool:
    if groups:
        return row.device.sku == "NVIDIA H200" and sizes.covers(row.problem, row.device)
    return row.problem.op == "scaled_mm"


def answers(whole: Path, kind: str) -> Iterator[dict[str, Any]]:
    """The answer of `near` to each problem that is held out, and its share of the best time."""
    truths = held_out.truths(whole)
    for held in held_out.chosen(truths, kind, len(truths)):
        with split(whole, truths, held) as one:
            yield from (answer(one, truth) for truth in one.held)


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Counts, and means of the answers other than ATen that were timed."""
    served = [row for row in rows if row.get("config", ATEN.text) != ATEN.text]
    timed = [row for row in served if row["share"] is not None]
    return {
        "problems": len(rows),
        "aten": sum(row.get("config") == ATEN.text for row in rows),
        "served": len(served),
        "timed": len(timed),
        "speed": round(statistics.geometric_mean(_speeds(rows)), 3),
        "gain": round(statistics.geometric_mean(row["share"] / row["aten"] for row in timed), 3),
        "best": round(statistics.geometric_mean(1 / row["aten"] for row in timed), 3),
        "slower": sum(row["share"] < 0.99 * row["aten"] for row in timed),
    }


def _speeds(rows: list[dict[str, Any]]) -> Iterator[float]:
    """The share of the best time of each answer, except of kernels that were not timed."""
    for row in rows:
        is_aten = row.get("config", ATEN.text) == ATEN.text
        if is_aten or row["share"] is not None:
            yield row["aten"] if is_aten else row["share"]
