"""Rebuild the shipped H200 table from the committed timings, and the manifest beside it.

    python -m tools.release ship [FOLDER...]

FOLDER holds archives, as `python -m benchmarks.h200 build` writes them; default: all of benchmarks/results/h200. Their
rows are united, except those of cuBLASLt algorithms that change no verdict and four kinds that are out of date: rows of
our kernels whose source has changed since (lookups check the source of Inductor's templates themselves), rows of
configs that have become illegal, rows of the first protocol, which timed operands at one address, and rows of problems
that no graph asks for. Writes `tables/sm90-nvidia-h200.db`, packed: verdicts and all timings, and
`tables/manifest.json`. Packs the other tables of the folder if they are not. The same archives give the same bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, SHIPPED
from benchmarks.h200.results import archives, folders
from gemmdb import trust
from gemmdb.generators.files import archive
from gemmdb.generators.files.manifest import write_manifest
from gemmdb.generators.files.pack import pack
from gemmdb.kernels.config import Config
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import UNSAFE, Measurement, Status
from gemmdb.table.reader import Table
from gemmdb.table.verdict import Verdict, decide_all
from gemmdb.table.writer import Store

MOST_BYTES = 6 * 2**20
"""The most bytes that the table may take in the wheel."""
KEPT = 3
"""The most algorithms of cuBLASLt that are shipped for a problem."""
OLDEST = 2
"""The first version of the protocol whose rows are shipped."""
COMMAND = "python -m tools.release ship"
_CHUNK = 5_000


def holds(row: Measurement) -> bool:
    """Whether a row is about a kernel and a problem of today, and a config that is legal."""
    spec = row.config.spec
    theirs = spec.emitted and spec.template is None  # Inductor's.
    current = theirs or row.config.is_current(row.toolchain.source)
    legal = row.config.rejection(row.problem, row.device) is None
    return current and legal and row.protocol.version >= OLDEST and asked(row.problem)


def asked(problem: Problem) -> bool:
    """Whether a graph can ask for a problem. A bias of one row is `1d`. On a GPU Inductor turns an addmm with a
    pointwise epilogue into a product and a sum, except in half precision, where the sum would be rounded once more, and
    where the product itself is needed."""
    if problem.op != "addmm" or problem.bias is None:
        return True
    kept = problem.epilogue is not None and problem.epilogue.kept
    whole = problem.fusion == "none" or kept or problem.out in ("bf16", "fp16")
    return whole and not (problem.bias.kind == "full" and problem.m == 1)


def fewest(rows: Sequence[Measurement]) -> list[Measurement]:
    """The rows of one problem on one device without the cuBLASLt algorithms that change no verdict. A build times
    about 25 of thousands for each problem. Verdicts are those of the KEPT fastest. Of these stay the picks and the
    fastest, which also says that algorithms were tried, and more only if a verdict would change. An algorithm that
    failed is no evidence, unless it was unsafe."""
    places: dict[Config, tuple[bool, float]] = {}
    others = []
    for row in rows:
        if row.config.backend != "cublaslt" or row.status in UNSAFE:
            others.append(row)
        elif row.times:
            place = row.status is not Status.OK, row.times.ratio  # Estimates come last.
            places[row.config] = min(place, places.get(row.config, place))
    ranked = sorted(places, key=lambda config: (places[config], config.text))[:KEPT]

    def having(configs: Collection[Config]) -> list[Measurement]:
        return others + [row for row in rows if row.times and row.config in configs]

    wanted = _picked(having(ranked))
    picks = [one.pick for one in wanted if one.pick in places]
    trials = ([*picks, *ranked[:count]] for count in range(1, KEPT + 1))
    return next(less for less in map(having, trials) if _picked(less) == wanted)


def _picked(rows: Sequence[Measurement]) -> list[Verdict]:
    return [one._replace(ties=one.ties[:1]) for one in decide_all(rows)]


def read(paths: Sequence[Path]) -> list[Measurement]:
    """The rows of the archives that are shipped."""
    groups: dict[tuple[int, int], list[Measurement]] = defaultdict(list)
    for row in (row for path in paths for row in archive.read(path)):
        if holds(row):
            groups[row.problem.key, row.device.key].append(row)
    return [row for key in sorted(groups) for row in fewest(groups[key])]


def _chunks(rows: Sequence[Measurement]) -> Iterator[Sequence[Measurement]]:
    return (rows[at : at + _CHUNK] for at in range(0, len(rows), _CHUNK))


def provenance(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The runs that made the rows, each with the files of its timings."""
    runs: dict[str, dict[str, Any]] = {}
    for path in paths:
        file = {"file": os.path.relpath(path, ROOT), "sha256": trust.sha256_of(path)}
        for run in archive.runs(path):
            known = runs.setdefault(run["run"], {**run, "timings": [], "table": COMMAND})
            known["timings"].append(file)
    return list(runs.values())


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("folder", type=Path, nargs="*", metavar="FOLDER", help="archives; default: all H200 results")
    parser.add_argument("--out", type=Path, default=SHIPPED, help="default: the shipped H200 table")


def main(options: argparse.Namespace) -> None:
    """Put every row into a temporary table, pack that, and describe it."""
    paths = [path for folder in options.folder or folders() for path in archives(folder)]
    with tempfile.TemporaryDirectory() as folder:
        full, small = Path(folder) / "full.db", Path(folder) / "small.db"
        rows = read(paths)
        present = {row.run for row in rows}
        with Store.open(full) as store:
            added = sum(map(store.add, _chunks(rows)))
            store.add_runs([run for run in provenance(paths) if run["run"] in present])
            print(f"{added:,} rows, {store.refresh():,} problems", flush=True)
        done = pack(full, small)
        size = small.stat().st_size
        print(f"{done.times:,} times in {size / 2**20:.2f} MiB", flush=True)
        if size > MOST_BYTES:
            raise SystemExit(f"{options.out} would be larger than {MOST_BYTES} bytes")
        shutil.copyfile(small, options.out)
    pack_others(options.out.parent)
    write_manifest(options.out.parent)


def pack_others(folder: Path) -> None:
    """Pack the tables of a folder that are not."""
    for path in sorted(folder.glob("*.db")):
        with contextlib.closing(Table.open(path)) as table:
            packed = table.packed
        if not packed:
            done = pack(path, path)
            print(f"{path}: {done.times:,} times in {path.stat().st_size / 2**20:.2f} MiB", flush=True)
