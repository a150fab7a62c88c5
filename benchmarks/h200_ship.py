"""Rebuild the shipped H200 table from the committed timings, and the manifest beside it.

    python benchmarks/h200_ship.py [FOLDER...]

FOLDER: of archives, as `h200_build.py` writes them; default: all of benchmarks/results/h200. Their rows are united,
without those that hold no more: of our kernels whose source has changed since (which of Inductor's templates a torch
has, lookups ask), of the first protocol, which timed operands at one address, and of problems that no graph asks for.
Writes `tables/sm90-nvidia-h200.db` (winners, ties, the fastest, and as large a sample of the rest as the wheel has room
for) and `tables/manifest.json`.
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

from h200_results import ROOT, SHIPPED, folders, parts

from gemmdb.generators.files import archive
from gemmdb.generators.files.compact import Keep, compact
from gemmdb.generators.files.manifest import write_manifest
from gemmdb.kernels import sources
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Measurement
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

MOST_BYTES = 16 * 2**20
"""What the table may take of the wheel."""
OLDEST = 2
"""The first version of the protocol whose rows are shipped."""
KEEPS = tuple(Keep(top, sample) for top, sample in ((8, 16), (8, 11), (8, 10), (8, 8), (8, 4), (6, 2), (3, 0)))


def holds(row: Measurement) -> bool:
    """Whether a row says something about what would run now."""
    current = row.config.spec.emitted or sources.is_current(row.config, row.toolchain.source)
    return current and row.protocol.version >= OLDEST and asked(row.problem)


def asked(problem: Problem) -> bool:
    """Whether a graph can ask for a problem. On a GPU Inductor makes a product and a sum of an addmm with a pointwise
    epilogue, and a bias of one row is `1d`."""
    if problem.op != "addmm" or problem.bias is None:
        return True
    return problem.fusion == "none" and not (problem.bias.kind == "full" and problem.m == 1)


def provenance(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """What made the rows: each run, and where its timings are."""
    runs: dict[str, dict[str, Any]] = {}
    for path in paths:
        file = {"file": os.path.relpath(path, ROOT), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for run in archive.runs(path):
            known = runs.setdefault(run["run"], {**run, "timings": [], "table": "python benchmarks/h200_ship.py"})
            known["timings"].append(file)
    return list(runs.values())


def main() -> None:
    """Put every row into a table of its own, compact that to the shipped one, and describe it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="*")
    parser.add_argument("--out", type=Path, default=SHIPPED)
    options = parser.parse_args()
    paths = [path for folder in options.folder or folders() for path in parts(folder)]
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


if __name__ == "__main__":
    main()
