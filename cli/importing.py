"""`gemmdb import`: reads the measurements of another program's file into a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gemmdb.cli.exporting import tell
from gemmdb.cli.options import JsonFlag
from gemmdb.errors import InputError


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to import. It is not changed.")],
    kind: Annotated[
        str, typer.Option("--from", metavar="FORMAT", help="csv, jsonl or parquet: what `gemmdb export` wrote.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The table: a new file, or a table to which the rows are added.")
    ],
    json: JsonFlag = False,
) -> None:
    """Add the measurements in a file to a table.

    The file is read as a stranger's: every value is checked, and nothing in it is ever run. If something is wrong, one
    line names the file and the line in it, and the table stays as it is.

    \b
    Examples:
      gemmdb import rows.csv --from csv -o copy.db
      gemmdb import rows.jsonl --from jsonl -o copy.db --json

    \b
    Exit codes: 0 done, 1 nothing could be carried over, 2 bad usage or bad input.
    """
    # Imported here: the formats load modules that no other command needs.
    from gemmdb.exchange.importing import OWN, load

    if kind not in OWN:
        raise InputError(f"--from: unknown format {kind!r}; known: {', '.join(OWN)}")
    tell(load(file, out, kind, OWN[kind]), json)
