"""Print the figures of the H200 rows: every figure that has a target, and the tables behind them.

    python -m benchmarks.h200 report [PATH] [--json FILE]

PATH is a table (default: the shipped one) or a folder of archives, as `build` writes them. The output is Markdown. The
time of a problem is that of its verdict's pick, pooled over all processes, relative to the ATen that was interleaved
with it, with a cold L2 and the newest procedure. The upper end of a problem is that of the pick's 95% interval. If the
folder holds `peers.jsonl` (see `peers`), the report adds the comparison with max-autotune and the share of a streaming
read.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, SHIPPED, json_lines
from benchmarks.h200 import peers_report
from benchmarks.h200.results import PEERS, archives, builds
from benchmarks.h200.strata import FIGURES, Member, mean, of
from gemmdb.generators.files import archive
from gemmdb.generators.measure.cuda.backend import VERSION
from gemmdb.kernels.config import ATEN
from gemmdb.kernels.triton import counts_arrivals
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Measurement, Status
from gemmdb.table.reader import Table
from gemmdb.table.verdict import Verdict, decide_all

SPLITS: tuple[tuple[str, Member], ...] = (
    ("int_mm, scale", of("int_mm", fusion="scale")),
    ("int_mm, alone", of("int_mm", fusion="none")),
    ("mm, all M", of("mm")),
    ("addmm, all M", of("addmm")),
    ("scaled_mm, M <= 64, scales of rows", of("scaled_mm", most=64, scales="row")),
    ("scaled_mm, M <= 64, one scale", of("scaled_mm", most=64, scales="tensor")),
    ("scaled_mm, M <= 64, scales of blocks", of("scaled_mm", most=64, scales="block")),
    ("scaled_mm, all M", of("scaled_mm")),
    ("int4 weights, all M", of("mixed_mm", int4=True)),
)
CLASSES = ((16, "1-16"), (64, "17-64"), (256, "65-256"), (1024, "257-1024"), (4096, "1025-4096"), (2**31, "4097-"))
Row = list[Any]


@dataclass
class Results:
    """The verdicts of a folder's rows, and how many rows have which status."""

    verdicts: list[Verdict] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    bad: Counter[str] = field(default_factory=Counter)
    twice: list[float] = field(default_factory=list)
    emitted: list[float] = field(default_factory=list)
    unemitted: Counter[str] = field(default_factory=Counter)


def newest_verdict(rows: Sequence[Measurement]) -> Verdict | None:
    """The verdict of a problem's rows with a cold cache and the newest procedure; None if there is none."""
    found = [v for v in decide_all(rows) if v.protocol.l2 == "cold"]
    return max(found, key=lambda v: (v.protocol.version, v.protocol.samples, v.klass), default=None)


def rows_of(path: Path) -> Iterator[Measurement]:
    """The rows of a folder of archives or of a table; of a packed table those of the archives that it was shipped from.
    Those of a problem follow each other."""
    from tools.release.ship import holds

    if path.is_dir():
        for file in archives(path):
            yield from archive.read(file)
        return
    with tempfile.TemporaryDirectory() as folder, Table.open(path) as table:
        if not table.packed:
            yield from table.measurements()
            return
        timings = {ROOT / one["file"] for run in table.provenance() for one in run.get("timings", ())}
        archive.restore(sorted(timings), Path(folder) / "whole.db", holds)
        with Table.open(Path(folder) / "whole.db") as whole:
            yield from whole.measurements()


def read(path: Path) -> Results:
    """The results of a folder of archives or a table."""
    results = Results()
    for problem, group in groupby(rows_of(path), key=lambda row: row.problem):
        rows = list(group)
        results.statuses.update(row.status.value for row in rows)
        failed = (Status.WRONG, Status.CRASH, Status.TIMEOUT)
        results.bad.update(f"{row.config.name} {row.status}" for row in rows if row.status in failed)
        twice, emitted = repeats(rows)
        results.twice += twice
        results.emitted += emitted
        verdict = newest_verdict(rows)
        if verdict is None:
            results.undecided.append(problem.text)
        else:
            results.verdicts.append(verdict)
            results.unemitted.update(unemitted(verdict, rows))
    return results


def unemitted(verdict: Verdict, rows: Iterable[Measurement]) -> list[str]:
    """The kind of a pick that was not timed as the code that Inductor emits; empty if it was, and for ATen."""
    pick = verdict.pick
    if pick.backend == "aten" or any(row.config == pick and row.emitted for row in rows):
        return []
    if verdict.protocol.version < VERSION:
        return ["of an older procedure"]
    return ["that count arrivals" if counts_arrivals(pick) else pick.backend]


def repeats(rows: Iterable[Measurement]) -> tuple[list[float], list[float]]:
    """The spread of the medians of each config that was measured in full more than once, relative to the least; and
    the ratio of the code that Inductor emits to the kernel by itself, if both were timed."""
    medians: dict[tuple[str, str], dict[bool, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.times and row.status is Status.OK and row.config != ATEN:
            medians[row.config.text, row.protocol.text][row.emitted].append(row.times.median_us)
    found = [times for kinds in medians.values() for times in kinds.values() if len(times) > 1]
    both = [kinds for kinds in medians.values() if len(kinds) == 2]
    ratios = [statistics.median(kinds[True]) / statistics.median(kinds[False]) for kinds in both]
    return [max(times) / min(times) - 1 for times in found], ratios


def upper(verdict: Verdict) -> float:
    """The upper end of the speedup's interval."""
    return 1.0 if verdict.pick == ATEN else verdict.speedup / max(1 - verdict.spread, 1e-6)


def summary(name: str, group: Sequence[Verdict]) -> dict[str, Any]:
    """One line of a table, JSON-ready."""
    worst = min(group, key=lambda v: v.speedup)
    return {
        "problems": name, "number": len(group), "speedup": mean(v.speedup for v in group),
        "aten_share": sum(v.pick == ATEN for v in group) / len(group),
        "worst": worst.speedup, "least_upper": min(map(upper, group)), "worst_problem": worst.problem.text,
    }  # fmt: skip


def grouped(verdicts: Iterable[Verdict], key: Callable[[Problem], str]) -> list[dict[str, Any]]:
    """A summary for each value of `key`."""
    groups: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        groups[key(verdict.problem)].append(verdict)
    return [summary(name, groups[name]) for name in sorted(groups)]


def class_of(problem: Problem) -> str:
    """Op, dtype and class of M."""
    number, (_, label) = next((i, entry) for i, entry in enumerate(CLASSES) if problem.m <= entry[0])
    dtype = problem.numerics.fp32 if problem.numerics.fp32 == "tf32" else problem.a.dtype
    return f"{problem.op} {dtype}, {number} M {label}"


def report(results: Results, path: Path) -> dict[str, Any]:
    """Everything, JSON-ready. Only a folder tells what its builds cost and how its peers compare."""
    folder = path if path.is_dir() else None
    verdicts = results.verdicts
    members = [(name, member) for name, member, *_ in FIGURES] + list(SPLITS)
    chosen = {name: [v for v in verdicts if member(v.problem)] for name, member in members}
    picks = Counter((v.problem.op, v.pick.name) for v in verdicts)
    return {
        "path": path.name,
        "figures": [summary(name, group) for name, group in chosen.items() if group],
        "aims": {name: {"aten": aten, "max_autotune": autotune} for name, _, aten, autotune in FIGURES},
        "classes": grouped(verdicts, class_of),
        "picks": [[op, name, count] for (op, name), count in sorted(picks.items())],
        "problems": dict(sorted(Counter(v.problem.op for v in verdicts).items())),
        "undecided": results.undecided, "statuses": dict(results.statuses), "bad": dict(results.bad),
        "repeated": repeated(results.twice),
        "emitted": {"configs": len(results.emitted), "ratio": mean(results.emitted), "largest": max(results.emitted)}
        if results.emitted
        else None,
        "unemitted": dict(sorted(results.unemitted.items())),
        "build": cost(builds(folder), len(verdicts) + len(results.undecided)),
        "peers": peers_report.summary(json_lines(folder / PEERS)) if folder else None,
    }  # fmt: skip


def cost(reports: Sequence[dict[str, Any]], problems: int) -> dict[str, float | None] | None:
    """The cost of all builds of `problems` problems. They add up, because one build may have confirmed what another
    had raced."""
    held = sum(one["lane_seconds"] for one in reports)
    if not held or not problems:
        return None
    return {
        "builds": len(reports), "problems": problems, "rows": sum(one["rows"] for one in reports),
        "wall_seconds": sum(one["seconds"] for one in reports), "gpu_seconds": held,
        "gpu_seconds_per_problem": held / problems,
        "busy_share": sum(one["busy_seconds"] or 0.0 for one in reports) / held,
    }  # fmt: skip


def repeated(twice: Sequence[float]) -> dict[str, float] | None:
    """How well repeated times agree."""
    if not twice:
        return None
    within = {f"within_{limit:.0%}": sum(c <= limit for c in twice) / len(twice) for limit in (0.01, 0.02)}
    return {"configs": len(twice), **within, "median": statistics.median(twice), "largest": max(twice)}


def table(head: Sequence[str], rows: Iterable[Row]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *([str(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markdown(found: dict[str, Any]) -> str:
    """The report to read."""
    head = ("problems", "number", "vs ATen", "aimed at", "worst", "least upper end", "ATen picked")
    aims = {name: f"{aim['aten']:.2f}x" for name, aim in found["aims"].items()}

    def row(one: dict[str, Any]) -> Row:
        return [one["problems"], one["number"], f"{one['speedup']:.3f}x", aims.get(one["problems"], ""),
                f"{one['worst']:.2f}x", f"{one['least_upper']:.2f}x", f"{one['aten_share']:.0%}"]  # fmt: skip

    counts = ", ".join(f"{op} {count:,}" for op, count in found["problems"].items())
    statuses = ", ".join(f"{count:,} {status}" for status, count in sorted(found["statuses"].items()))
    texts = [f"Problems: {counts}. Rows: {statuses}.", table(head, map(row, found["figures"]))]
    worst = [[one["problems"], f"`{one['worst_problem']}`"] for one in found["figures"]]
    texts.append(table(("problems", "the worst of them"), worst))
    texts += [f"Without a verdict: {len(found['undecided'])}."] if found["undecided"] else []
    texts += [f"Wrong, crashed or hung: {', '.join(f'{n} {k}' for k, n in found['bad'].items())}."] * bool(found["bad"])
    if found["repeated"]:
        texts.append(
            "Timed in more than one process: " + ", ".join(f"{k} {v:.4g}" for k, v in found["repeated"].items())
        )
    if emitted := found["emitted"]:
        texts.append("Emitted code relative to the kernel by itself: " + ", ".join(
            f"{k} {v:.4g}" for k, v in emitted.items()))  # fmt: skip
    if found["unemitted"]:
        kinds = ", ".join(f"{count} {kind}" for kind, count in found["unemitted"].items())
        texts.append(f"Picks that were not timed as emitted code: {sum(found['unemitted'].values())} ({kinds}).")
    if found["build"]:
        texts.append("Build: " + ", ".join(f"{k} {v:.4g}" for k, v in found["build"].items() if v is not None))
    texts += peers_report.markdown(found["peers"]) if found["peers"] else []
    texts += [table(("op", "pick", "problems"), found["picks"]), table(head, map(row, found["classes"]))]
    return "\n\n".join(texts)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("path", type=Path, nargs="?", default=SHIPPED, help="default: the shipped H200 table")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON too")


def main(options: argparse.Namespace) -> None:
    """Print the report, and write it as JSON too."""
    found = report(read(options.path), options.path)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    print(markdown(found))
