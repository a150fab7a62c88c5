"""`gemmdb merge`: the union of tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gemmdb.cli.output import count, note
from gemmdb.errors import InputError


def merge(
    inputs: Annotated[list[Path], typer.Argument(metavar="A B...", help="Tables; they are only read.")],
    out: Annotated[Path, typer.Option(help="The table to write: a new file, or one of the inputs.")],
) -> None:
    """Write the union of several tables into one.

    The order of the inputs does not matter, and merging a table twice adds nothing. Verdicts are decided anew from the
    union.

    \b
    Examples:
      gemmdb merge monday.db tuesday.db --out both.db

    \b
    Exit codes: 0 done, 2 bad usage or bad input.
    """
    # The writer is built on sqlite-utils, which takes 0.25 s to import: other commands do without.
    from gemmdb.generators.files.merge import merge as merge_tables

    if out.exists() and not any(path.exists() and path.samefile(out) for path in inputs):
        raise InputError(f"{out} exists and would be replaced: name it as an input too, or give another --out")
    rows = merge_tables(inputs, out)
    note(f"{count(rows, 'measurement')} of {count(len(inputs), 'table')} in {out}")
