"""`gemmdb merge`: writes the union of tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gemmdb.cli.output import count, note
from gemmdb.errors import InputError


def merge(
    inputs: Annotated[list[Path], typer.Argument(metavar="A B...", help="The tables to merge. They are not changed.")],
    out: Annotated[Path, typer.Option(help="The table to write: a new file, or one of the inputs.")],
) -> None:
    """Write the union of several tables into one table.

    The order of the inputs makes no difference, and merging a table twice adds nothing. Verdicts are derived again from
    the union. Where GEMMDB_TRUST is set, your own table (GEMMDB_USER_TABLE) takes only files that it lists.

    \b
    Examples:
      gemmdb merge monday.db tuesday.db --out both.db

    \b
    Exit codes: 0 done, 2 bad usage or bad input.
    """
    # Imported here because the writer needs sqlite-utils, which takes 0.25 s to import.
    from gemmdb.generators.files.merge import merge as merge_tables

    if out.exists() and not any(path.exists() and path.samefile(out) for path in inputs):
        raise InputError(f"{out} exists and would be replaced: also name it as an input, or choose another --out")
    rows = merge_tables(inputs, out)
    note(f"{count(rows, 'measurement')} of {count(len(inputs), 'table')} in {out}")
