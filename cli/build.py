"""`gemmdb build`: measures a table."""

from __future__ import annotations

import importlib.util
import math
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemmdb.cli.options import JsonFlag, takes
from gemmdb.cli.output import note, say_facts, say_json
from gemmdb.cli.progress import BuildProgress
from gemmdb.errors import InputError
from gemmdb.key.problem import Problem
from gemmdb.settings import data_home
from gemmdb.table.measurement import TIMED
from gemmdb.table.reader import Table
from gemmdb.table.verdict import TIE
from gemmdb.workload import entries

if TYPE_CHECKING:
    from gemmdb.generators.build.build import BuildReport, BuildRequest


@dataclass(frozen=True)
class BuildOptions:
    """The flags of `gemmdb build`."""

    arch: Annotated[
        str,
        typer.Option(
            help="The device to measure: native, cpu, sm80, sm90, ...; without --modelled, it must be in this machine."
        ),
    ]
    ops: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated ops: mm, addmm, int_mm, mixed_mm, bmm, scaled_mm [default: those of the shapes]."
        ),
    ] = None
    dtypes: Annotated[
        str | None, typer.Option(help="Comma-separated activation dtypes [default: those of the shapes].")
    ] = None
    shapes: Annotated[
        str | None,
        typer.Option(
            metavar="PRESET|FILE",
            help="A preset, a workload of `gemmdb record`, or a shapes file [default: the preset of the device].",
        ),
    ] = None
    effort: Annotated[
        str | None,
        typer.Option(
            help="How many candidates to try: quick, standard or full [default: quick on a CPU, else standard]."
        ),
    ] = None
    out: Annotated[
        Path | None, typer.Option(help="The table to write [default: $XDG_DATA_HOME/gemmdb/<arch>-<sku>.db].")
    ] = None
    gpus: Annotated[int | None, typer.Option(min=1, help="How many GPUs to use [default: all].")] = None
    minutes: Annotated[
        float | None, typer.Option(help="Start no new problem after this time. The same command continues later.")
    ] = None
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS|local", help="Spread the work over a Ray cluster (not available in this version)."
        ),
    ] = None
    modelled: Annotated[
        bool,
        typer.Option(
            "--modelled", help="Predict instead of measuring if the arch is not in this machine. The rows are marked."
        ),
    ] = False
    allow: Annotated[
        str, typer.Option(metavar="REGEX", help="Try only candidates whose text matches. ATen is always tried.")
    ] = ""
    deny: Annotated[str, typer.Option(metavar="REGEX", help="Do not try candidates whose text matches.")] = ""
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="Also measure the products of a workload that end in ATen in any case. They are left out."
        ),
    ] = False
    verbose: Annotated[bool, typer.Option("--verbose", help="Also show why candidates failed or were excluded.")] = (
        False
    )
    as_json: JsonFlag = False

    def request(self) -> BuildRequest:
        """What the library is asked to build."""
        from gemmdb.generators.build.build import BuildRequest

        return BuildRequest(
            self.arch,
            _words(self.ops or ""),
            _words(self.dtypes or ""),
            self.shapes,
            self.effort,
            self.out,
            self.gpus,
            self.ray,
            self.modelled,
            self.minutes,
            self.allow,
            self.deny,
            self.every,
        )


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


@takes(BuildOptions)
def build(options: BuildOptions) -> None:
    """Measure every candidate kernel and write a table.

    Each result is written at once, so you can stop a build at any time: the same command continues where it stopped.
    Known results are not measured again. If a problem has new candidates, these are measured together with the best
    known ones. Lookups find the default file automatically.

    \b
    Examples:
      gemmdb build --arch native
      gemmdb build --arch native --shapes workload.jsonl --effort standard
      gemmdb build --arch sm90
      gemmdb build --arch sm90 --ops mixed_mm --dtypes bf16,fp16 --out h200.db --gpus 4
      gemmdb build --arch sm80 --modelled --shapes workload.jsonl

    \b
    Exit codes: 0 done, or stopped after --minutes (candidates that failed are rows of the table), 2 bad usage or bad
    input, 130 interrupted (Ctrl-C or SIGTERM).
    """
    _check_installed(options.modelled)
    # Imported here because the generators need sqlite-utils and more, which other commands do not.
    from gemmdb.generators.build.build import build as build_table
    from gemmdb.generators.shapes import loading as shapes

    request = options.request()
    with BuildProgress() as progress, terminable():
        report = build_table(request, progress, say=note)
    problems = shapes.select(shapes.load(request.shapes, report.device.kind), request.ops, request.dtypes)
    if options.verbose:
        _note_failures(report, problems)
    for warning in report.warnings:
        note(warning)
    if options.as_json:
        say_json("build", _document(report))
    else:
        say_facts(_summary(request, report, problems))
    if report.left and not report.interrupted:
        note(f"out of time; {report.left:,} of {report.jobs:,} are left: the same command continues from there")
    if report.interrupted:
        note(f"interrupted; the results so far are in {report.out}: the same command continues from there")
        raise typer.Exit(130)


def _check_installed(modelled: bool) -> None:
    if importlib.util.find_spec("torch") is None and not modelled:
        raise InputError("building needs torch, which is not installed: pip install torch 'gemmdb[build]'")
    if importlib.util.find_spec("jinja2") is None:  # It comes with torch too.
        raise InputError("building needs jinja2, which is not installed: pip install 'gemmdb[build]'")


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM ends a build as Ctrl-C does."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield  # Only the main thread may set handlers.
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _document(report: BuildReport) -> dict[str, Any]:
    """The report as JSON, its device by name."""
    fields = {**report.document(), "arch": report.device.arch, "device": report.device.sku}
    return {
        **fields, "left": report.left, "seconds_per_job": report.seconds_per_job, "busy_share": report.busy_share,
    }  # fmt: skip


def _summary(request: BuildRequest, report: BuildReport, problems: Sequence[Problem]) -> list[tuple[str, str]]:
    """Name and value of each line of the final summary."""
    statuses = ", ".join(f"{number:,} {status}" for status, number in report.statuses.items())
    what = "modelled" if report.modelled else "measured"
    done = f"{report.measured} of {report.jobs} {what} now in {report.seconds:.0f} s"
    done += f", {report.before} known before" if report.before else ""
    done += f", {report.elsewhere} by another build" if report.elsewhere else ""
    facts = [
        ("device", f"{report.device.sku} ({report.device.arch})"),
        ("problems", f"{report.problems:,}"),
        ("modelled" if report.modelled else "measurements", done),
        *_costs(report),
        ("candidates", f"{report.rows:,} new rows: {statuses}" if statuses else "no new rows"),
        ("expected" if report.modelled else "verdicts", _gains(report, problems)),
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
    table = Table.open(report.out)
    found = [verdict for problem in problems if (verdict := table.verdict(problem, report.device)) is not None]
    table.close()
    gains = sorted(verdict.speedup for verdict in found if verdict.speedup > 1 + TIE)
    if not gains:
        return f"{len(found):,}, of which none beats ATen"
    mean = math.exp(sum(map(math.log, gains)) / len(gains))
    return f"{len(found):,}, of which {len(gains):,} beat ATen, {mean:.2f}x on average and {gains[-1]:.2f}x at most"


def _note_failures(report: BuildReport, problems: Sequence[Problem]) -> None:
    """A line on stderr for every row of these problems without times."""
    table = Table.open(report.out)
    for problem in problems:
        for row in table.rows(problem, report.device):
            if row.status not in TIMED:
                note(f"{row.status}: {row.config.text} on {problem.text}: {row.detail or 'no detail'}")
    table.close()
