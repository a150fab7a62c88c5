"""What `gemmdb build` says at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmdb.cli.output import gain_text, note
from gemmdb.errors import InputError
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem
from gemmdb.settings import Policy, data_home
from gemmdb.table.catalog import Catalog
from gemmdb.table.measurement import TIMED
from gemmdb.table.reader import Table
from gemmdb.table.stats import Gain, weighted
from gemmdb.table.verdict import TIE
from gemmdb.workload import entries
from gemmdb.workload.entries import Workload

if TYPE_CHECKING:
    from gemmdb.generators.build.build import BuildReport, BuildRequest


def document(request: BuildRequest, report: BuildReport, problems: Sequence[Problem]) -> dict[str, Any]:
    """The report as JSON, its device by name."""
    weighed, gain = gain_of(request, report, problems)
    fields = {**report.document(), "arch": report.device.arch, "device": report.device.sku}
    return {
        **fields, "left": report.left, "seconds_per_job": report.seconds_per_job, "busy_share": report.busy_share,
        "gain": {**asdict(gain), "weighed": weighed},
    }  # fmt: skip


def summary(request: BuildRequest, report: BuildReport, problems: Sequence[Problem]) -> list[tuple[str, str]]:
    """Name and value of each line of the final summary."""
    statuses = ", ".join(f"{number:,} {status}" for status, number in report.statuses.items())
    what = "modelled" if report.modelled else "measured"
    done = f"{report.measured} of {report.jobs} {what} now in {report.seconds:.0f} s"
    done = done if report.jobs else "nothing to measure"
    done += f", {report.before} known before" if report.before else ""
    done += f", {report.elsewhere} by another build" if report.elsewhere else ""
    weighed, gain = gain_of(request, report, problems)
    facts = [
        ("device", f"{report.device.sku} ({report.device.arch})"),
        ("problems", f"{report.problems:,}"),
        ("modelled" if report.modelled else "measurements", done),
        *_costs(report),
        ("candidates", f"{report.rows:,} new rows: {statuses}" if statuses else "no new rows"),
        ("expected" if report.modelled else "verdicts", _gains(report, problems)),
        ("over ATen", f"{gain_text(gain)}, {weighed}"),
        ("table", str(report.out)),
        ("next", _next(request)),
    ]
    if report.out.absolute().parent != data_home().absolute():
        facts[-1] = ("next", f"GEMMDB_TABLES={report.out} {facts[-1][1]}")
    return facts


def _costs(report: BuildReport) -> list[tuple[str, str]]:
    """The cost in GPU time; empty for a CPU or a modelled build."""
    if report.device.kind == "cpu" or report.modelled or report.seconds_per_job is None:
        return []
    cost = f"{report.workers} GPU(s), {report.seconds_per_job:.2f} GPU-seconds per measurement"
    busy = "" if report.busy_share is None else f", {report.busy_share:.0%} of them in timed calls"
    return [("cost", cost + busy)]


def _next(request: BuildRequest) -> str:
    """The command to run next."""
    try:
        entries.read(Path(request.shapes or ""))
    except InputError:
        return "gemmdb tables"
    return f"gemmdb coverage {request.shapes}"


def _gains(report: BuildReport, problems: Sequence[Problem]) -> str:
    """How many verdicts beat ATen and by how much, over all requested problems, measured now or before."""
    with Table.open(report.out) as table:
        found = [verdict for problem in problems if (verdict := table.verdict(problem, report.device)) is not None]
    gains = sorted(verdict.speedup for verdict in found if verdict.speedup > 1 + TIE)
    best = f"{len(gains):,} beat ATen, {gains[-1]:.2f}x at most" if gains else "none beats ATen"
    return f"{len(found):,}, of which {best}"


def gain_of(request: BuildRequest, report: BuildReport, problems: Sequence[Problem]) -> tuple[str, Gain]:
    """How calls are weighed, and the gain over ATen of all calls of the shapes by the table: those that a workload
    counted, else one of each problem."""
    from gemmdb.generators.coverage import coverage

    try:
        workload = entries.read(Path(request.shapes or ""))
    except InputError:
        with Table.open(report.out) as table:
            found = [verdict for problem in problems if (verdict := table.verdict(problem, report.device)) is not None]
        return "one call of each", weighted(
            (one.aten_us, one.expected_us, one.spread if one.pick != ATEN else 0.0) for one in found
        )
    chosen = set(problems)
    mine = tuple(one for one in workload.entries if one.problem in chosen and one.device in ("", report.device.text))
    return "weighted by calls and time", coverage(Workload(mine, {}), Catalog.load(tables=[report.out]), Policy()).gain


def note_failures(report: BuildReport, problems: Sequence[Problem]) -> None:
    """A line on stderr for every row of these problems without times."""
    table = Table.open(report.out)
    for problem in problems:
        for row in table.rows(problem, report.device):
            if row.status not in TIMED:
                note(f"{row.status}: {row.config.text} on {problem.text}: {row.detail or 'no detail'}")
    table.close()
