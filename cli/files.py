"""Commands on table files: `gemmdb merge`, `diff` and `tables pack`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from typer import Argument, Option

from gemmdb.cli.options import JsonFlag
from gemmdb.cli.output import count, note, say, say_json, say_table
from gemmdb.errors import InputError, TableError
from gemmdb.table.reader import Table

if TYPE_CHECKING:
    from gemmdb.generators.files.diff import Diff

# The generators are imported in functions: other commands do not need them.


def merge(
    inputs: list[Path] = Argument(metavar="A B...", help="The tables to merge. They are not changed."),
    out: Path = Option(..., "--out", "-o", help="The table to write: a new file, or one of the inputs."),
) -> None:
    """Merge several tables into one.

    The order of the inputs does not matter, and merging a table twice adds nothing. Verdicts are recomputed from all
    rows. If GEMMDB_TRUST is set, your own table (GEMMDB_USER_TABLE) accepts only files that it lists.

    \b
    Examples:
      gemmdb merge monday.db tuesday.db --out both.db

    \b
    Exit codes: 0 done, 2 bad usage or bad input.
    """
    from gemmdb.generators.files.merge import merge as merge_tables

    if out.exists() and not any(path.exists() and path.samefile(out) for path in inputs):
        raise InputError(f"{out} exists and would be replaced: also name it as an input, or choose another --out")
    rows = merge_tables(inputs, out)
    note(f"{count(rows, 'measurement')} of {count(len(inputs), 'table')} in {out}")


def pack(
    table: Path = Argument(metavar="TABLE", help="The table to pack. It is not changed."),
    out: Path = Option(
        ..., "--out", "-o", metavar="FILE", help="The packed table to write: a new file, or a packed table to replace."
    ),
) -> None:
    """Write a small, fast copy of a table for lookups.

    A table keeps every measurement. Its packed form keeps one record per problem: for each config, its time relative to
    ATen, pooled over runs, and its uncertainty, in 8 bytes. The shipped table of the H200 takes less than 5 MiB.
    Lookups return the same results.

    Keep the original table: a packed table cannot be extended, and `merge` and `export --to csv` need the measurements.
    The same table always gives the same bytes.

    \b
    Examples:
      gemmdb tables pack mine.db --out served.db
      GEMMDB_TABLES=served.db python train.py

    \b
    Exit codes: 0 done, 2 bad usage or bad input.
    """
    if out.exists():
        if table.exists() and out.samefile(table):
            raise InputError(f"{out} is the table itself, whose measurements would be lost: choose another --out")
        if not _is_packed(out):
            raise InputError(f"{out} exists and is not a packed table: choose another --out")
    from gemmdb.generators.files.pack import pack as pack_table

    done = pack_table(table, out)
    size = f"{table.stat().st_size / 2**20:.1f} to {out.stat().st_size / 2**20:.1f} MiB"
    note(f"{out}: {count(done.times, 'time')} of {count(done.problems, 'problem')}, from {size}")


def _is_packed(path: Path) -> bool:
    try:
        with Table.open(path) as known:
            return known.packed
    except TableError:
        return False


def diff(
    a: Path = Argument(metavar="A", help="A table."),
    b: Path = Argument(metavar="B", help="Another table."),
    json: JsonFlag = False,
) -> None:
    """Compare the rows and the verdicts of two tables.

    \b
    Examples:
      gemmdb diff monday.db tuesday.db
      gemmdb diff monday.db tuesday.db --json

    \b
    Exit codes: 0 the same, 1 they differ, 2 bad usage or bad input.
    """
    from gemmdb.generators.files.diff import diff as diff_of

    found = diff_of(a, b)
    if json:
        say_json("diff", found.as_dict())
    elif not found:
        say("both tables hold the same measurements and verdicts")
    else:
        _say_diff(found)
    if found:
        raise typer.Exit(1)


def _say_diff(found: Diff) -> None:
    sides = (("A", found.only_a, found.rows_a, found.decided_a), ("B", found.only_b, found.rows_b, found.decided_b))
    for name, problems, rows, decided in sides:
        only = f"{count(rows, 'measurement')}, {count(len(problems), 'problem')}"
        say(f"only in {name}: {only}, {count(len(decided), 'verdict')} on problems of both")
    if not found.changed:
        say("the verdicts that both tables have are the same")
        return
    say()
    changed = [
        (
            "tied" if one.held else "changed", f"{one.speedup_before:.2f}x", f"{one.speedup_after:.2f}x",
            one.before, one.after, f"{one.problem} on {one.device}",
        )
        for one in found.changed
    ]  # fmt: skip
    say_table(("verdict", "speedup in A", "in B", "pick in A", "in B", "problem"), changed, right=("speedup in A",))
