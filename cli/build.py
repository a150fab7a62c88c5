"""`gemmdb build`: measures a table."""

from __future__ import annotations

import importlib.util
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
            help="Comma-separated ops: mm, addmm, int_mm, mixed_mm, bmm, scaled_mm, grouped_mm [default: those of the"
            " shapes]."
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
            metavar="ADDRESS|local",
            help="Build over the nodes of a Ray cluster: HOST:PORT of its head, auto for that of this host, or local.",
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
            arch=self.arch, ops=_words(self.ops or ""), dtypes=_words(self.dtypes or ""), shapes=self.shapes,
            effort=self.effort, out=self.out, gpus=self.gpus, ray=self.ray, modelled=self.modelled,
            minutes=self.minutes, allow=self.allow, deny=self.deny, every=self.every,
        )  # fmt: skip


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


@takes(BuildOptions)
def build(options: BuildOptions) -> None:
    """Measure every candidate kernel and write a table.

    Each result is written at once, so you can stop a build at any time: the same command continues where it stopped.
    Known results are not measured again. If a problem has new candidates, these are measured together with the best
    known ones. Lookups find the default file automatically.

    With --ray the nodes of a cluster measure, each GPU and each CPU one problem at a time, and the results are written
    here. --arch native then builds for every kind of device that the nodes have. What a lost node was measuring is
    measured by another one, and set aside as crash or timeout after the third.

    \b
    Examples:
      gemmdb build --arch native
      gemmdb build --arch native --shapes workload.jsonl --effort standard
      gemmdb build --arch sm90
      gemmdb build --arch sm90 --ops mixed_mm --dtypes bf16,fp16 --out h200.db --gpus 4
      gemmdb build --arch sm80 --modelled --shapes workload.jsonl
      gemmdb build --arch native --shapes workload.jsonl --ray 10.0.0.5:6379

    \b
    Exit codes: 0 done, or stopped after --minutes (candidates that failed are rows of the table), 2 bad usage or bad
    input, 130 interrupted (Ctrl-C or SIGTERM).
    """
    _check_installed(options.modelled, options.ray is not None)
    request = options.request()
    with BuildProgress() as progress, terminable():
        reports = _built(request, progress)
    documents = [document for report in reports if (document := _said(options, request, report)) is not None]
    if documents:
        first, *further = documents
        say_json("build", {**first, "further": further} if further else first)
    if any(report.interrupted for report in reports):
        raise typer.Exit(130)


def _built(request: BuildRequest, progress: BuildProgress) -> Sequence[BuildReport]:
    """The reports of a build: one, or with --ray one per kind of device."""
    # Imported here because the generators need sqlite-utils and more, which other commands do not.
    if request.ray is not None:
        from gemmdb.generators.cluster.build import build as build_over

        return build_over(request, progress, say=note)
    from gemmdb.generators.build.build import build as build_table

    return [build_table(request, progress, say=note)]


def _said(options: BuildOptions, request: BuildRequest, report: BuildReport) -> dict[str, Any] | None:
    """Print a report, or return it as JSON, if that is wanted."""
    from gemmdb.cli import build_summary
    from gemmdb.generators import shapes

    problems = shapes.select(shapes.load(request.shapes, report.device.kind), request.ops, request.dtypes)
    if options.verbose:
        build_summary.note_failures(report, problems)
    for warning in report.warnings:
        note(warning)
    if not options.as_json:
        say_facts(build_summary.summary(request, report, problems))
    if report.left and not report.interrupted:
        note(f"out of time; {report.left:,} of {report.jobs:,} are left: the same command continues from there")
    if report.interrupted:
        note(f"interrupted; the results so far are in {report.out}: the same command continues from there")
    return build_summary.document(request, report, problems) if options.as_json else None


def _check_installed(modelled: bool, over_a_cluster: bool) -> None:
    if over_a_cluster:
        from gemmdb.generators.cluster.connection import check_installed

        check_installed()
    elif importlib.util.find_spec("torch") is None and not modelled:
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
