"""The summary that `gemmdb build` prints at the end."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmdb import outcome
from gemmdb.advice import Act, Advice, Situation, advise
from gemmdb.cli.coverage import advised
from gemmdb.cli.gain import NO_GAIN
from gemmdb.cli.output import note
from gemmdb.devices import detect
from gemmdb.errors import InputError
from gemmdb.generators import shapes
from gemmdb.generators.coverage import Coverage, coverage
from gemmdb.kernels.config import ATEN
from gemmdb.outcome import NO_KERNEL, Kind, Outcome, counted
from gemmdb.settings import Policy, data_home
from gemmdb.table.catalog import Catalog
from gemmdb.table.measurement import TIMED
from gemmdb.table.reader import Table
from gemmdb.table.stats import Part, weighted
from gemmdb.table.verdict import TIE, Verdict
from gemmdb.workload import entries
from gemmdb.workload.entries import Workload

if TYPE_CHECKING:
    from gemmdb.generators.build.build import BuildReport, BuildRequest


class Summary:
    """The report of a build, and the verdicts of all requested problems, measured now or before."""

    def __init__(self, request: BuildRequest, report: BuildReport) -> None:
        self.shapes, self.report = request.shapes, report
        self.problems = shapes.select(shapes.load(request.shapes, report.device.kind), request.ops, request.dtypes)
        with Table.open(report.out) as table:
            verdicts = [table.verdict(problem, report.device) for problem in self.problems]
        self.verdicts = [verdict for verdict in verdicts if verdict is not None]
        try:
            workload = entries.read(Path(request.shapes or ""))
        except InputError:
            self.found, self.weighed = None, "one call of each"
            with Table.open(report.out) as table:
                served = [_outcome(verdict, table) for verdict in self.verdicts]
            self.kinds, self.disturbed = [one.kind for one in served], sum(one.disturbed for one in served)
            self.gain = weighted(
                Part.of(one.aten_us, one.expected_us, one.spread if one.pick != ATEN else 0.0) for one in self.verdicts
            )
        else:
            self.weighed = "weighted by calls and time"
            self.found = found = self._coverage(workload)
            self.kinds, self.gain, self.disturbed = list(found.kinds), found.gain, found.disturbed

    def _coverage(self, workload: Workload) -> Coverage:
        """Return what a compile with the table serves. It times modelled kernels before it serves them."""
        report, chosen = self.report, set(self.problems)
        known = [one for one in workload.entries if one.problem in chosen]
        # A workload of another device is built as if this device had run it.
        mine = [one for one in known if one.device in ("", report.device.text)] or known
        policy = Policy(confirm=report.modelled)
        return coverage(Workload(tuple(mine), {}), Catalog.load(tables=[report.out]), policy, report.device)

    def document(self) -> dict[str, Any]:
        """The report as JSON, its device by name."""
        report = self.report
        return {
            **report.document(), "arch": report.device.arch, "device": report.device.sku,
            "left": report.left, "seconds_per_job": report.seconds_per_job, "busy_share": report.busy_share,
            "gain": {**asdict(self.gain), "weighed": self.weighed},
        }  # fmt: skip

    def steps(self, command: str, patient: str) -> tuple[Advice, ...]:
        """Return what to do if the build gained nothing or is incomplete; empty otherwise. `command` continues it,
        `patient` waits for a quiet machine first."""
        report, found = self.report, self.found
        if found is not None and not report.jobs and not report.stopped:
            said = advised(found, Path(self.shapes or ""), report.device.sku != detect.native().sku)
            return tuple(one for one in said if one.act is not Act.BUILD)  # It would measure nothing again.
        known = len(self.verdicts) - self.disturbed - report.left_out.get(NO_KERNEL, 0)
        steps = advise(Situation(
            report.left_out, best=max(known, 0), largest=found.most_rows if found else 0,
            tighter=found.tighter if found else (), disturbed=report.disturbed or self.disturbed, timed=report.rows,
            left=0 if report.stopped else report.left, command=command, busy=report.stopped, patient=patient,
        ))  # fmt: skip
        if steps[0].act is not Act.NOTHING:
            return steps
        return () if any(verdict.speedup > 1 + TIE for verdict in self.verdicts) else steps

    def facts(self) -> list[tuple[str, str]]:
        """Return the name and value of each line."""
        report, modelled = self.report, self.report.modelled
        statuses = ", ".join(f"{number:,} {status}" for status, number in report.statuses.items())
        gains = [verdict.speedup for verdict in self.verdicts if verdict.speedup > 1 + TIE]
        beat = "are predicted to beat ATen at the recorded sizes" if modelled else "beat ATen"
        best = f"{len(gains):,} {beat}, {max(gains):.2f}x at most" if gains else "none beats ATen"
        known = bool(self.verdicts) and (modelled or self._is_usable())
        following = f"gemmdb coverage {self.shapes}" if self.found else "gemmdb tables"
        if self.found and report.device != detect.native():
            following += f" --device {shlex.quote(report.device.sku)}" + " --confirm" * modelled
        if report.out.absolute().parent != data_home().absolute():
            following = f"GEMMDB_TABLES={report.out} {following}"
        return [
            ("device", f"{report.device.sku} ({report.device.arch})"),
            ("problems", f"{report.problems:,}"),
            ("modelled" if modelled else "measurements", self._done()),
            *self._cost(),
            ("candidates", f"{report.rows:,} new rows: {statuses}" if statuses else "no new rows"),
            ("expected" if modelled else "verdicts", f"{len(self.verdicts):,}, of which {best}" if known else "none"),
            ("over ATen", self._gain() if known else "nothing is known yet"),
            ("table", str(report.out)),
            *([] if report.stopped else [("next", following)]),  # The next step follows.
        ]

    def _gain(self) -> str:
        """Describe the gain, or why there is none."""
        if all(kind.aten for kind in self.kinds):
            return f"{NO_GAIN}; {counted(self.kinds)}"
        timed = "; a compile times these kernels before it serves them" if self.report.modelled else ""
        return f"{self.gain}, {self.weighed}; {counted(self.kinds)}{timed}"

    def _is_usable(self) -> bool:
        """Whether times of this build or of earlier ones were not disturbed."""
        report = self.report
        timed = sum(report.statuses.get(status.value, 0) for status in TIMED)
        return report.before + report.elsewhere > 0 or timed > report.disturbed

    def _done(self) -> str:
        report, verb = self.report, "modelled" if self.report.modelled else "measured"
        done = f"{report.measured} of {report.jobs} {verb} now in {report.seconds:.0f} s"
        done = done if report.jobs else "nothing to measure"
        done += f", {report.before} known before" if report.before else ""
        return done + (f", {report.elsewhere} by another build" if report.elsewhere else "")

    def _cost(self) -> list[tuple[str, str]]:
        """Return the cost in GPU time; empty for a CPU or a modelled build."""
        report = self.report
        if report.device.kind == "cpu" or report.modelled or report.seconds_per_job is None:
            return []
        busy = "" if report.busy_share is None else f", {report.busy_share:.0%} of them in timed calls"
        gpus = f"{report.workers} GPU(s)"
        return [("cost", f"{gpus}, {report.seconds_per_job:.2f} GPU-seconds per measurement{busy}")]

    def note_failures(self) -> None:
        """Print a line on stderr for every row of the requested problems without times."""
        with Table.open(self.report.out) as table:
            for problem in self.problems:
                for row in table.rows(problem, self.report.device):
                    if row.status not in TIMED:
                        note(f"{row.status}: {row.config.text} on {problem.text}: {row.detail or 'no detail'}")


def _outcome(verdict: Verdict, table: Table) -> Outcome:
    """Return what a verdict serves."""
    if verdict.pick != ATEN:
        return Outcome(Kind.TABLE)
    disturbed = table.disturbed(verdict.problem, verdict.device, ATEN)
    return outcome.of("exact", ATEN.text, disturbed=disturbed)
