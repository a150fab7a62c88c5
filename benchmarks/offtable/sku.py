"""What does rung `sku` answer from the shipped H200 rows on another GPU, and how fast is that there? Runs on the CPU.

    python -m benchmarks.offtable sku [FOLDER...] [--json]

FOLDER holds archives of another SKU; default: those of the H100. What they say of a problem is the truth. The shipped
H200 table alone is asked, in two ways: `certain`, where nothing times the answer first, and `confirming`, as before an
answer is timed. A kernel that was not timed on the problem is `unknown`. `gain`: the geometric mean over ATen of all
other problems, with ATen where no kernel is served; `best`: the same of the fastest kernel that was timed there.

The last lines are about an answer before a confirmation. The first compares it with rung `near` from the archives'
other problems, where both name a kernel that was timed. The second turns around: what does `near` gain on the H200,
from the other problems of its table, where ATen won on the other GPU? Served are the kernels that were not timed there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, SHIPPED
from benchmarks.offtable import held_out
from benchmarks.offtable.against_aten import ratio
from benchmarks.offtable.held_out import Truth
from benchmarks.offtable.ways import WAYS
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Query
from gemmdb.lookup.acceptance.near import near, near_unless_measured, sku
from gemmdb.lookup.ask import Ask
from gemmdb.table.reader import Table

H100 = tuple(ROOT / "benchmarks" / "results" / "h100" / day for day in ("2026-11-25", "2026-11-26", "2026-11-27"))
SLOWER = 1.02
"""From which time relative to ATen a kernel counts as slower."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("folders", nargs="*", type=Path, default=H100, metavar="FOLDER", help="archives of one SKU")
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")


def main(options: argparse.Namespace) -> None:
    """Ask about every problem, and print the figures."""
    with opened(options.folders) as tables:
        found, both, lost = figures(tables), against_near(tables), where_aten_won(tables)
    if options.json:
        print(json.dumps({"ways": found, "against_near": both, "where_aten_won": lost}, indent=1))
        return
    print("\n".join(markdown(found)))
    print(f"\n{both['problems']} problems: near {both['near']:.3f}x, sku {both['sku']:.3f}x, best {both['best']:.3f}x")
    for name, of in lost.items():
        print(f"ATen won there, {name}: {of['problems']} problems, {of['gain']:.3f}x, {of['slower']} slower by 2%")


@dataclass(frozen=True)
class Opened:
    """The shipped H200 table, a table of the archives, and what the latter holds of each problem."""

    shipped: Table
    archived: Table
    truths: list[Truth]


@contextmanager
def opened(folders: Sequence[Path]) -> Iterator[Opened]:
    """Unite the archives of the folders, and open what the figures are made of."""
    with tempfile.TemporaryDirectory() as folder, closing(Table.open(SHIPPED, immutable=True)) as shipped:
        whole = Path(folder) / "whole.db"
        held_out.united(held_out.archives(folders), whole)
        with closing(Table.open(whole, immutable=True)) as table:
            yield Opened(shipped, table, list(held_out.truths(whole).values()))


def figures(tables: Opened) -> dict[str, dict[str, dict[str, Any]]]:
    """The figures by way and op; `all` are those of all ops."""
    scored: dict[str, dict[str, list[tuple[bool, float | None, float]]]] = {way: defaultdict(list) for way in WAYS}
    (device,) = tables.archived.devices()
    for truth in tables.truths:
        for way, policy in WAYS.items():
            one = score(Ask(Query(truth.problem, device), (tables.shipped,), policy, None), truth)
            for name in ("all", truth.problem.op):
                scored[way][name].append(one)
    return {way: {op: summary(rows) for op, rows in ops.items()} for way, ops in scored.items()}


def against_near(tables: Opened) -> dict[str, Any]:
    """The gains of both rungs over ATen, where both name a kernel that was timed. `near` leaves the problem itself
    out."""
    rows = []
    (device,), policy = tables.archived.devices(), WAYS["confirming"]
    for truth in tables.truths:
        query = Query(truth.problem, device)
        near_by, elsewhere = (Ask(query, (table,), policy, None) for table in (tables.archived, tables.shipped))
        hits = [near(near_by).hit, sku(elsewhere).hit]
        times = [ratio(truth, hit.config) for hit in hits if hit is not None and hit.config != ATEN]
        if len(times) == len(hits) and None not in times:
            rows.append((*times, truth.best))
    means = (1 / statistics.geometric_mean(column) for column in zip(*rows, strict=True))
    return {"problems": len(rows), **dict(zip(("near", "sku", "best"), means, strict=True))}


def where_aten_won(tables: Opened) -> dict[str, Any]:
    """What rung `near` gains on the H200, from the other problems of its table, where ATen won in the archives and
    `near` names a kernel that was timed on the H200. `served`: the same of kernels that the archives did not time."""
    times, served = [], []
    (device,) = tables.shipped.devices()
    for truth in tables.truths:
        known = {one.config: one.ratio for one in tables.shipped.pooled(truth.problem, device)}
        ask = Ask(Query(truth.problem, device), (tables.archived, tables.shipped), WAYS["confirming"], None)
        hit = near(replace(ask, tables=(tables.shipped,))).hit
        there = sku(replace(ask, tables=(tables.archived,))).hit
        if hit is None or hit.config not in known or hit.config == ATEN or there is None or there.config != ATEN:
            continue
        if "held_back" in there.evidence:
            continue
        times.append(known[hit.config])
        if near_unless_measured(ask).hit == hit:
            served.append(known[hit.config])
    return {"near": _gained(times), "served": _gained(served)}


def _gained(times: Sequence[float]) -> dict[str, Any]:
    gain = 1 / statistics.geometric_mean(times) if times else 1.0
    return {"problems": len(times), "gain": gain, "slower": sum(time > SLOWER for time in times)}


def score(ask: Ask, truth: Truth) -> tuple[bool, float | None, float]:
    """Whether a kernel is served; the time of what is served relative to ATen, None if it is unknown; the least time of
    all kernels."""
    hit = sku(ask).hit
    if hit is None or hit.config == ATEN:
        return False, 1.0, truth.best
    return True, ratio(truth, hit.config), truth.best


def summary(rows: Sequence[tuple[bool, float | None, float]]) -> dict[str, Any]:
    """The figures of some problems."""
    known = [(served, time, best) for served, time, best in rows if time is not None]
    return {
        "problems": len(rows),
        "kernels": sum(served for served, _, _ in rows),
        "unknown": len(rows) - len(known),
        "gain": 1 / statistics.geometric_mean(time for _, time, _ in known),
        "best": 1 / statistics.geometric_mean(best for _, _, best in known),
        "slower": sum(served and time > SLOWER for served, time, _ in known),
        "worst": 1 / max(time for _, time, _ in known),
    }


def markdown(found: dict[str, dict[str, dict[str, Any]]]) -> Iterator[str]:
    """The figures as a table."""
    yield "| op | problems | | kernels | unknown | slower by 2% | worst | gain | best |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for op in found["certain"]:
        for way, of in ((way, ops[op]) for way, ops in found.items()):
            counts = f"{of['kernels']} | {of['unknown']} | {of['slower']} | {of['worst']:.2f}x"
            yield f"| {op} | {of['problems']} | {way} | {counts} | {of['gain']:.3f}x | {of['best']:.3f}x |"
