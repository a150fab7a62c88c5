"""`gemmdb report`: one HTML page about a table, a workload or a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gemmdb.api import current_catalog
from gemmdb.cli.output import note, say
from gemmdb.errors import InputError


def report(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A table, a workload of `gemmdb record`, or what `gemmdb compare --json` printed."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="The page [default: FILE's name with -report.html, here].", show_default=False
        ),
    ] = None,
) -> None:
    """Write one HTML page about a table, a workload or a comparison.

    The page holds all that it needs and loads nothing from a server, so it can be sent to a colleague as it is. It has
    filters and a searchable table, and can be printed. docs/report.md explains its charts. Needs `gemmdb[report]`.

    \b
    Examples:
      gemmdb report mine.db
      gemmdb report workload.jsonl -o workload.html

    \b
    Exit codes: 0 done, 2 bad usage or bad input.
    """
    from gemmdb.report import page, reading

    target = out or Path(f"{file.stem}-report.html")
    if target.exists() and file.exists() and target.samefile(file):
        raise InputError(f"{target} is the file that the report is about; name another with --out")
    page.bundle()  # What is missing is said at once.
    text = page.render(reading.document(file, current_catalog()))
    size = page.write(text, target)
    say(str(target))
    note(f"{size / 2**20:.1f} MiB; open it in a browser")
