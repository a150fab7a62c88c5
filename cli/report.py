"""`gemmdb report`: one HTML page about a table, a workload, a comparison, or a program."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from gemmdb.cli.output import count, microseconds, note, say
from gemmdb.errors import InputError
from gemmdb.lookup.environment import current_catalog
from gemmdb.tune import running


def report(
    file: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="A table, a workload of `gemmdb record`, or what `gemmdb compare --json` printed; or, after --, a"
            " program with at least one argument.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="The page [default: FILE's name with -report.html, here].", show_default=False
        ),
    ] = None,
) -> None:
    """Write one HTML page about a table, a workload, a comparison or a program.

    A program is run and recorded; the page says of each of its GEMMs what answers it, what that gains, and why ATen
    runs where it does. The page holds all that it needs and loads nothing from a server, so it can be sent to a
    colleague as it is. It has filters and a searchable table, and can be printed. docs/how-to/report.md explains its
    charts.
    Needs `gemmdb[report]`.

    \b
    Examples:
      gemmdb report mine.db
      gemmdb report workload.jsonl -o workload.html
      gemmdb report -- python serve.py

    \b
    Exit codes: 0 done, 2 bad usage or bad input.
    """
    from gemmdb.report import page

    page.bundle()  # What is missing is said at once.
    if len(file) > 1:
        _write(_of_program(file), out or Path("program-report.html"))
        return
    path = Path(file[0])
    target = out or Path(f"{path.stem}-report.html")
    if target.exists() and path.exists() and target.samefile(path):
        raise InputError(f"{target} is the file that the report is about; name another with --out")
    _write(_of_file(path), target)


def _of_file(path: Path) -> dict[str, Any]:
    """The document of a file."""
    from gemmdb.report import documents

    return documents.document(path, current_catalog())


def _of_program(command: list[str]) -> dict[str, Any]:
    """The document of what a program compiles. Raises InputError if that is nothing."""
    with tempfile.TemporaryDirectory(prefix="gemmdb-report-") as folder:
        workload = Path(folder, "workload.jsonl")
        recorded = running.run(command, workload)
        if recorded.exit_code:
            note(f"COMMAND ended with exit code {recorded.exit_code}")
        if not workload.exists():
            raise InputError(f"nothing was recorded: {recorded.obstacle}")
        return {**_of_file(workload), "title": " ".join(command)[:200]}


def _write(document: dict[str, Any], target: Path) -> None:
    """Write the page, and what it says in a line."""
    from gemmdb.report import page

    size = page.write(page.render(document), target)
    say(str(target))
    if document["kind"] == "workload":
        products = count(len(document["products"]), "product")
        times = f"{microseconds(document['aten_us'])} with ATen, {microseconds(document['total_us'])} as served"
        note(f"{products}, {document['gain']:.2f}x over ATen, weighted by time: {times}")
    note(f"{size / 2**20:.1f} MiB; open it in a browser")
