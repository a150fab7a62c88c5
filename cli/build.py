"""`gemmdb build`: measures a table."""

from __future__ import annotations

import shlex
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from typer import Option

from gemmdb import advice
from gemmdb.cli.busy import PASTED_WAIT, AskOption, again, patience
from gemmdb.cli.options import JsonFlag, require, takes
from gemmdb.cli.output import note, say_facts, say_json
from gemmdb.cli.progress import BuildProgress
from gemmdb.files import check_folder

if TYPE_CHECKING:
    from gemmdb.cli.build_summary import Summary
    from gemmdb.generators.build.build import BuildReport, BuildRequest

# The generators are imported in functions: other commands do not need them.


@dataclass(frozen=True)
class BuildOptions:
    """The flags of `gemmdb build`."""

    arch: str = Option(
        help="The device to measure: native, cpu, sm80, sm90, ...; without --modelled, it must be in this machine."
    )
    ops: str | None = Option(
        None,
        help="Comma-separated ops: mm, addmm, int_mm, mixed_mm, bmm, scaled_mm, grouped_mm [default: those of the"
        " shapes].",
    )
    dtypes: str | None = Option(None, help="Comma-separated activation dtypes [default: those of the shapes].")
    shapes: str | None = Option(
        None,
        metavar="PRESET|FILE",
        help="A preset, a workload of `gemmdb record`, or a shapes file [default: the preset of the device].",
    )
    effort: str | None = Option(
        None,
        help="How many candidates to benchmark: quick, standard or full, and on a GPU also lean [default: quick on a"
        " CPU, else standard].",
    )
    out: Path | None = Option(
        None, "--out", "-o", help="The table to write [default: $XDG_DATA_HOME/gemmdb/<arch>-<sku>.db]."
    )
    gpus: int | None = Option(None, min=1, help="How many GPUs to use [default: all].")
    minutes: float | None = Option(
        None, help="End after this many minutes, at most a tenth later. Run the same command to continue."
    )
    ray: str | None = Option(
        None,
        metavar="ADDRESS|local",
        help="Build on the nodes of a Ray cluster: HOST:PORT of its head, auto for this host's cluster, or local.",
    )
    modelled: bool = Option(
        False,
        "--modelled",
        help="Predict instead of measuring if this machine does not have the arch. The rows are marked.",
    )
    allow: str = Option("", metavar="REGEX", help="Try only candidates whose text matches. ATen is always tried.")
    deny: str = Option("", metavar="REGEX", help="Do not try candidates whose text matches.")
    propose: Path | None = Option(
        None,
        metavar="FILE",
        help="Also try the configs in a JSON file of vLLM, for experts (E=...,N=...) or fp8 with block scales"
        " (N=...,K=...,block_shape=[128,128]). They are timed like all candidates.",
    )
    every: bool = Option(
        False,
        "--all",
        help="Also measure GEMMs of a workload that only ATen can run [default: leave them out].",
    )
    wait: AskOption = None
    verbose: bool = Option(False, "--verbose", help="Also show why candidates failed or were excluded.")
    as_json: JsonFlag = False

    def request(self) -> BuildRequest:
        """The request for the library. Raises InputError for a table in a missing folder."""
        if self.out is not None:
            check_folder(self.out)
        from gemmdb.generators.build.build import BuildRequest

        return BuildRequest(
            arch=self.arch, ops=_words(self.ops), dtypes=_words(self.dtypes), shapes=self.shapes, effort=self.effort,
            out=self.out, gpus=self.gpus, ray=self.ray, modelled=self.modelled, minutes=self.minutes, allow=self.allow,
            deny=self.deny, propose=self.propose, every=self.every, wait_s=patience(self.wait),
        )  # fmt: skip


def line(options: BuildOptions, wait: str | None = None) -> str:
    """Return the command that continues a build. `wait`: its --wait."""
    asked = {
        "arch": options.arch, "ops": options.ops, "dtypes": options.dtypes, "shapes": options.shapes,
        "effort": options.effort, "out": options.out, "gpus": options.gpus, "minutes": options.minutes,
        "ray": options.ray, "allow": options.allow or None, "deny": options.deny or None,
        "propose": options.propose, "wait": wait,
    }  # fmt: skip
    words = [word for name, value in asked.items() if value is not None for word in (f"--{name}", str(value))]
    return shlex.join(["gemmdb", "build", *words, *["--all"] * options.every])


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


@takes(BuildOptions)
def build(options: BuildOptions) -> None:
    """Benchmark every candidate kernel and write a table.

    While other programs use the machine, it asks on a terminal whether to wait, stop or measure anyway; --wait decides.
    Each result is written immediately, so you can stop a build at any time and continue with the same command. Known
    results are not measured again. If a problem has new candidates, they are measured together with the best known
    ones. Lookups find the default file automatically.

    With --ray, the nodes of a cluster measure one problem at a time on each GPU and CPU, and the results are written on
    this machine. --arch native then builds for every kind of device in the cluster. A problem whose node is lost is
    measured by another node, and set aside as crash or timeout after the third loss.

    \b
    Examples:
      gemmdb build --arch native
      gemmdb build --arch native --shapes workload.jsonl --effort standard
      gemmdb build --arch sm90
      gemmdb build --arch sm90 --ops mixed_mm --dtypes bf16,fp16 --out h200.db --gpus 4
      gemmdb build --arch sm80 --modelled --shapes workload.jsonl
      gemmdb build --arch native --shapes workload.jsonl --ray 10.0.0.5:6379

    \b
    Exit codes: 0 done, or stopped after --minutes (candidates that failed are rows of the table), 1 stopped because
    other programs use the machine, 2 bad usage or bad input, 130 interrupted (Ctrl-C or SIGTERM).
    """
    if options.ray is not None:
        from gemmdb.generators.cluster.connection import check_installed

        check_installed()
    elif not options.modelled:
        require("torch", "building")
    require("jinja2", "building", "'gemmdb[build]'")  # It comes with torch too.
    from gemmdb.cli.build_summary import Summary
    from gemmdb.generators.request import resumed

    request = options.request()
    with terminable():
        reports = _built(request)
        while len(reports) == 1 and (more := again(reports[0], options.wait)):
            (before,) = reports
            later = replace(request.after(before), wait_s=more.wait_s, minutes=_minutes_left(request, before))
            rest = _built(later)
            reports = [resumed(before, report) if report.device == before.device else report for report in rest]
    summaries = [Summary(request, report) for report in reports]
    for summary in summaries:
        _say(options, summary)
    if options.as_json:
        first, *further = (summary.document() for summary in summaries)
        say_json("build", {**first, "further": further} if further else first)
    if any(report.interrupted for report in reports):
        raise typer.Exit(130)
    if any(report.stopped for report in reports):
        raise typer.Exit(1)


def _built(request: BuildRequest) -> Sequence[BuildReport]:
    """Return the reports of a build: one, or with --ray one per kind of device."""
    with BuildProgress() as progress:
        if request.ray is not None:
            from gemmdb.generators.cluster.build import build as build_over_cluster

            return build_over_cluster(request, progress, say=note)
        from gemmdb.generators.build.build import build as build_table

        return [build_table(request, progress, say=note)]


def _minutes_left(request: BuildRequest, report: BuildReport) -> float | None:
    return None if request.minutes is None else max(request.minutes - report.seconds / 60, 1e-9)


def _say(options: BuildOptions, summary: Summary) -> None:
    report = summary.report
    if options.verbose:
        summary.note_failures()
    for warning in report.notes:
        note(warning)
    if not options.as_json:
        say_facts([*summary.facts(), *advice.facts(summary.steps(line(options), line(options, PASTED_WAIT)), "to do")])
    if report.stopped:
        note(f"stopped: {report.stopped}; --wait 10m waits longer, --wait 0s measures anyway")
    elif report.left and not report.interrupted:
        more = "" if report.measured else ", with more --minutes,"
        note(f"out of time; {report.left:,} of {report.jobs:,} are left: run the same command{more} to continue")
    if report.interrupted and not report.rows:
        note("interrupted; nothing was measured")
    elif report.interrupted:
        note(f"interrupted; the results so far are in {report.out}: run the same command to continue")


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM end a build like Ctrl-C."""

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
