"""`gemmdb record`: records which GEMMs a program compiles, and how often; `gemmdb report`: writes an HTML page about
them, a table or a comparison."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import Any

import typer
from typer import Argument, Option

from gemmdb.cli.gain import NO_GAIN
from gemmdb.cli.output import count, microseconds, note, say
from gemmdb.errors import InputError
from gemmdb.files import check_appendable, check_target
from gemmdb.lookup.environment import current_catalog
from gemmdb.settings import Policy
from gemmdb.table.stats import Gain
from gemmdb.tune.running import Recorded, run
from gemmdb.workload import entries


def record(
    command: list[str] = Argument(metavar="COMMAND...", help="The program and its arguments."),
    out: Path = Option(
        Path("workload.jsonl"), "--out", "-o", help="The workload file. Recorded problems are added to it."
    ),
) -> None:
    """Record the GEMMs that a program compiles.

    Every Python process that COMMAND starts is recorded, without changes to the program. Each line of the workload
    contains a problem and its count in one process, or the name of a GEMM that gemmdb does not support. Several lines
    may contain the same problem: `gemmdb build --shapes` and `gemmdb coverage` add them up.

    \b
    Examples:
      gemmdb record -- python train.py
      gemmdb record --out decode.jsonl -- python -m serve --batch 8

    \b
    Exit codes: that of COMMAND (128 + n when signal n ended it); 2 when it cannot be started, or
    the workload cannot be written.
    """
    check_appendable(out)  # The program may take an hour.
    before, _ = _in_workload(out)
    recorded = _run(command, out)
    after, unsupported = _in_workload(out)
    if after == before == 0 and not unsupported:
        note(f"nothing was recorded: {recorded.obstacle}")
    else:
        new = f", {after - before} of them new" if before else ""
        named = f"; not handled: {', '.join(unsupported)}" if unsupported else ""
        note(f"{count(after, 'problem')} in {out}{new}{named}")
        for step in _next(out):
            note(f"next: {step}")
    raise typer.Exit(recorded.exit_code)


def _next(workload: Path) -> list[str]:
    """Return what `gemmdb coverage` advises, or its command if it advises nothing."""
    from gemmdb.cli.coverage import advised
    from gemmdb.generators.coverage import coverage

    found = coverage(entries.read(workload), current_catalog(), Policy())
    return [*map(str, advised(found, workload, False))] or [shlex.join(["gemmdb", "coverage", str(workload)])]


def _in_workload(path: Path) -> tuple[int, list[str]]:
    """Return the number of problems in a workload, and the names of its GEMMs that gemmdb does not support. A missing
    file counts as empty. Raises InputError for a file that is not a workload."""
    if not path.exists():
        return 0, []
    found = entries.read(path)
    return len({entry.problem for entry in found.entries}), sorted(found.uncovered)


def _run(command: list[str], workload: Path) -> Recorded:
    recorded = run(command, workload)
    if recorded.exit_code:
        note(f"COMMAND ended with exit code {recorded.exit_code}")
    return recorded


def report(
    file: list[str] = Argument(
        metavar="FILE",
        help="A table, a workload from `gemmdb record`, or the output of `gemmdb compare --json`; or, after --, a"
        " program with at least one argument.",
    ),
    out: Path | None = Option(
        None, "--out", "-o", help="The page [default: FILE's name with -report.html, here].", show_default=False
    ),
) -> None:
    """Write one HTML page about a table, a workload, a comparison or a program.

    A program is run and recorded; the page lists for each of its GEMMs the kernel, its gain, and why ATen runs if it
    does. The page is self-contained and loads nothing from a server, so you can share it as a file. It has filters and
    a searchable table, and can be printed. docs/how-to/report.md explains its charts. Needs `gemmdb[report]`.

    \b
    Examples:
      gemmdb report mine.db
      gemmdb report workload.jsonl -o workload.html
      gemmdb report -- python serve.py

    \b
    Exit codes: 0 done, 2 bad usage or bad input.
    """
    from gemmdb.report import documents, page

    page.require()  # Report missing parts early.
    if len(file) > 1:
        target = out or Path("program-report.html")
        check_target(target)  # The program may take an hour.
        document = _of_program(file)
    else:
        path = Path(file[0])
        target = out or Path(f"{path.stem}-report.html")
        if target.exists() and path.exists() and target.samefile(path):
            raise InputError(f"{target} is the file that the report is about; name another with --out")
        document = documents.document(path, current_catalog())
    size = page.write(page.render(document), target)
    say(str(target))
    if document["kind"] == "workload":
        gemms = count(len(document["products"]) + document["smaller"], "GEMM")
        times = f"{microseconds(document['aten_us'])} with ATen, {microseconds(document['total_us'])} as served"
        low, high = document["interval"]
        gain = Gain(document["gain"], low, high, document["ranged"])
        if all(one["aten"] for one in document["products"]) and document["gain"] == 1:
            note(f"{gemms}, {NO_GAIN}: {microseconds(document['aten_us'])}")
        else:
            note(f"{gemms}, expected over ATen, weighted by time: {gain}; {times}")
        if gain.verdict != "faster":
            what = ["tune", "--dry-run", "--", *file] if len(file) > 1 else ["coverage", *file]
            note(f"what to do: {shlex.join(['gemmdb', *what])}")
    note(f"{size / 2**20:.1f} MiB; open it in a browser")


def _of_program(command: list[str]) -> dict[str, Any]:
    """Return the report document of a program. Raises InputError if it compiles no GEMM."""
    from gemmdb.report import documents

    with tempfile.TemporaryDirectory(prefix="gemmdb-report-") as folder:
        workload = Path(folder, "workload.jsonl")
        recorded = _run(command, workload)
        if not workload.exists():
            raise InputError(f"nothing was recorded: {recorded.obstacle}")
        return {**documents.document(workload, current_catalog()), "title": " ".join(command)[:200]}
