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
import functools
import os
import shutil
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, SHIPPED
from benchmarks.h200.results import archives, folders
from gemmdb import trust
from gemmdb.generators.files import archive
from gemmdb.generators.files.manifest import write_manifest
from gemmdb.generators.files.merge import replacement
from gemmdb.generators.files.pack import Answers, Packed, pack, write
from gemmdb.kernels.config import Config
from gemmdb.kernels.triton import WITHOUT_WAIT
from gemmdb.kernels.triton.int4 import grouped
from gemmdb.kernels.triton.memory import tile_of
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.lookup.expected import stamp_of, with_expectations
from gemmdb.table import bulk_reading
from gemmdb.table.measurement import UNSAFE, Measurement, Status, fingerprint
from gemmdb.table.reader import Table
from gemmdb.table.record import Record
from gemmdb.table.verdict import Verdict, decide_all
from gemmdb.table.writer import Store

MOST_BYTES = 6 * 2**20
"""The most bytes that the table may take in the wheel."""
KEPT = 3
"""The most algorithms of cuBLASLt that are shipped for a problem."""
OLDEST = 2
"""The first version of the protocol whose rows are shipped."""
COMMAND = "python -m tools.release ship"


def holds(row: Measurement) -> bool:
    """Whether a row is about a kernel and a problem of today, and a config that is legal."""
    spec = row.config.spec
    theirs = spec.emitted and spec.template is None  # Inductor's.
    current = theirs or (row.config.is_current(row.toolchain.source) and not _without_wait(row))
    legal = row.config.rejection(row.problem, row.device) is None
    return current and legal and row.protocol.version >= OLDEST and asked(row.problem)


def _without_wait(row: Measurement) -> bool:
    """Whether a row is of a kernel that waits for the matrix unit since then: its time may be a fifth too short, so it
    would win against those that wait. Where nothing was measured since, a lookup still takes such rows."""
    value = row.config.values
    if row.config.name != "triton:int4" or row.toolchain.source not in WITHOUT_WAIT:
        return False
    waits = value["scaled"] == "weights" and grouped(tile_of(row.config), int(value["warps"]))
    return waits and "order" not in value


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


def read(paths: Sequence[Path]) -> list[list[Measurement]]:
    """The rows of the archives that are shipped, by problem and device."""
    groups: dict[tuple[int, int], dict[int, Measurement]] = defaultdict(dict)
    for row in (row for path in paths for row in archive.read(path)):
        if holds(row):
            groups[row.problem.key, row.device.key][row.key] = row  # An archive may repeat rows of another.
    return [fewest(list(groups[key].values())) for key in sorted(groups)]


def referred(groups: Iterable[Sequence[Measurement]]) -> list[Measurement]:
    """One row for each device, protocol, toolchain and run of all rows."""
    found: dict[object, Measurement] = {}
    for row in (row for rows in groups for row in rows):
        figures = tuple(sorted(row.device.figures.items()))
        found.setdefault((row.device.key, figures, row.protocol.key, row.toolchain.key, row.run), row)
    return list(found.values())


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
    """Write the packed table of all rows without the table of the rows themselves, and describe it."""
    paths = [path for folder in options.folder or folders() for path in archives(folder)]
    groups = [rows for rows in read(paths) if rows]
    print(f"{sum(map(len, groups)):,} rows, {len(groups):,} problems", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        some, small = Path(folder) / "some.db", Path(folder) / "small.db"
        rows = referred(groups)
        present = {row.run for row in rows}
        with Store.open(some) as store:
            store.add(rows)
            store.add_runs([run for run in provenance(paths) if run["run"] in present])
        done = packed(groups, some, small)
        size = small.stat().st_size
        print(f"{done.times:,} times in {size / 2**20:.2f} MiB", flush=True)
        if size > MOST_BYTES:
            raise SystemExit(f"{options.out} would be larger than {MOST_BYTES} bytes")
        shutil.copyfile(small, options.out)
    pack_others(options.out.parent)
    write_manifest(options.out.parent)


def packed(groups: Sequence[Sequence[Measurement]], some: Path, out: Path) -> Packed:
    """Write the packed table of the rows of each problem and device. `some`: a table with what the rows refer to."""
    with contextlib.closing(Table.open(some)) as table:
        devices = {device.key: device for device in table.devices()}
    answers = (Answers.of(rows, devices[rows[0].device.key], decide_all(rows)) for rows in groups)
    digest = sum(fingerprint(row) for rows in groups for row in rows) % 2**128
    with contextlib.closing(bulk_reading.connect(some)) as known, contextlib.closing(sqlite3.connect(out)) as db:
        return write(db, answers, functools.partial(bulk_reading.ordered_rows, known), 1, f"{digest:032x}")


def pack_others(folder: Path) -> None:
    """Pack the tables of a folder that are not, and anew those that hold the expectations of another cost model."""
    for path in sorted(folder.glob("*.db")):
        with contextlib.closing(Table.open(path)) as table:
            packed, current = table.packed, is_current(table)
        if not current:
            done = renewed(path) if packed else pack(path, path)
            print(f"{path}: {done.times:,} times in {path.stat().st_size / 2**20:.2f} MiB", flush=True)


def is_current(table: Table) -> bool:
    """Whether a table is packed, with the expectations of the present cost model."""
    some = next(table.pairs(), None) if table.packed else None
    return some is not None and _record(table, *some).stamp == stamp_of(some[1])


def renewed(path: Path) -> Packed:
    """Pack a packed table anew, with the expectations of the present cost model. All else stays as it is."""
    with (
        replacement(path) as part,
        contextlib.closing(Table.open(path)) as table,
        contextlib.closing(bulk_reading.connect(path)) as known,
        contextlib.closing(sqlite3.connect(part)) as db,
    ):
        rows = functools.partial(bulk_reading.ordered_rows, known)
        return write(db, _renewed(table), rows, table.generation, table.source)


def _renewed(table: Table) -> Iterator[Answers]:
    for problem, device in table.pairs():
        found = with_expectations(_record(table, problem, device), problem, device)
        yield Answers(problem, device, found, table.verdicts(problem, device), 0)


def _record(table: Table, problem: Problem, device: Device) -> Record:
    found = table.record(problem, device)
    assert found is not None
    return found
