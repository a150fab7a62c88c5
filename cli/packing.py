"""`gemmdb tables pack`: writes the form of a table that is served."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gemmdb.cli.output import count, note
from gemmdb.errors import InputError, TableError
from gemmdb.table.reader import Table


def pack(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="The table to pack. It is not changed.")],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="The packed table to write: a new file, or one to pack anew.")
    ],
) -> None:
    """Write a small, fast copy of a table for lookups.

    A table keeps every measurement. Its packed form keeps one record per problem: of each config its time relative to
    ATen, pooled over runs, and how sure that is, in 8 bytes. The 260,283 measurements of an H200 take 4.4 MiB.
    All answers stay the same.

    Keep the table itself: nothing can be added to a packed one, and `merge` and `export --to csv` need the
    measurements. The same table gives the same bytes.

    \b
    Examples:
      gemmdb tables pack mine.db --out served.db
      GEMMDB_TABLES=served.db python train.py

    \b
    Exit codes: 0 done, 2 bad usage or bad input.
    """
    _check(table, out)
    from gemmdb.generators.files.pack import pack as pack_table

    done = pack_table(table, out)
    size = f"{table.stat().st_size / 2**20:.1f} to {out.stat().st_size / 2**20:.1f} MiB"
    note(f"{out}: {count(done.times, 'time')} of {count(done.problems, 'problem')}, from {size}")


def _check(table: Path, out: Path) -> None:
    if not out.exists():
        return
    if table.exists() and out.samefile(table):
        raise InputError(f"{out} is the table itself, whose measurements would be lost: choose another --out")
    try:
        with Table.open(out) as known:
            packed = known.packed
    except TableError:
        packed = False
    if not packed:
        raise InputError(f"{out} exists and is not a packed table: choose another --out")
