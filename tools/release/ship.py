"""Rebuild the shipped H200 table from the committed timings, and the manifest beside it.

    python -m tools.release ship [FOLDER...]

FOLDER holds archives, as `python -m benchmarks.h200 build` writes them; default: all of benchmarks/results/h200. Their
rows are united, except three kinds that are out of date: rows of our kernels whose source has changed since (lookups
check the source of Inductor's templates themselves), rows of the first protocol, which timed operands at one address,
and rows of problems that no graph asks for. Writes `tables/sm90-nvidia-h200.db` (winners, ties, the fastest, and as
large a sample of the rest as the wheel has room for) and `tables/manifest.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, SHIPPED
from benchmarks.h200.results import archives, folders
from gemmdb.generators.files import archive
from gemmdb.generators.files.compact import Keep, compact
from gemmdb.generators.files.manifest import write_manifest
from gemmdb.kernels import sources
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Measurement
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

MOST_BYTES = 16 * 2**20
"""The most bytes that the table may take in the wheel."""
OLDEST = 2
"""The first version of the protocol whose rows are shipped."""
COMMAND = "python -m tools.release ship"
KEEPS = tuple(Keep(top, sample) for top, sample in ((8, 8), (8, 7), (8, 6), (8, 4), (6, 2), (3, 0)))
"""How many rows of a problem to keep: the first choice that fits is taken."""


def holds(row: Measurement) -> bool:
    """Whether a row is about a kernel and a problem of today."""
    current = row.config.spec.emitted or sources.is_current(row.config, row.toolchain.source)
    return current and row.protocol.version >= OLDEST and asked(row.problem)


def asked(problem: Problem) -> bool:
    """Whether a graph can ask for a problem. A bias of one row is `1d`. On a GPU Inductor turns an addmm with a
    pointwise epilogue into a product and a sum, except in half precision, where the sum would be rounded once more, and
    where the product itself is needed."""
    if problem.op != "addmm" or problem.bias is None:
        return True
    kept = problem.epilogue is not None and problem.epilogue.kept
    whole = problem.fusion == "none" or kept or problem.out in ("bf16", "fp16")
    return whole and not (problem.bias.kind == "full" and problem.m == 1)


def provenance(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The runs that made the rows, each with the files of its timings."""
    runs: dict[str, dict[str, Any]] = {}
    for path in paths:
        file = {"file": os.path.relpath(path, ROOT), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for run in archive.runs(path):
            known = runs.setdefault(run["run"], {**run, "timings": [], "table": COMMAND})
            known["timings"].append(file)
    return list(runs.values())


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("folder", type=Path, nargs="*", metavar="FOLDER", help="archives; default: all H200 results")
    parser.add_argument("--out", type=Path, default=SHIPPED, help="default: the shipped H200 table")


def main(options: argparse.Namespace) -> None:
    """Put every row into a temporary table, compact that to the shipped one, and describe it."""
    paths = [path for folder in options.folder or folders() for path in archives(folder)]
    with tempfile.TemporaryDirectory() as folder:
        full = Path(folder) / "full.db"
        rows = archive.restore(paths, full, holds)
        with contextlib.closing(Table.open(full)) as table:
            present = {run["run"] for run in table.provenance()}
        with Store.open(full) as store:
            store.add_runs([run for run in provenance(paths) if run["run"] in present])
            print(f"{rows:,} rows, {store.refresh():,} problems")
        for keep in KEEPS:
            rows = compact(full, options.out, keep)
            size = options.out.stat().st_size
            print(f"{keep}: {rows:,} rows in {size / 2**20:.1f} MiB", flush=True)
            if size <= MOST_BYTES:
                break
        else:
            raise SystemExit(f"{options.out} is larger than {MOST_BYTES} bytes")
    write_manifest(options.out.parent)
