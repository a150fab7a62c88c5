"""`gemmdb export`: writes a table in the format of another program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemmdb.cli.options import JsonFlag
from gemmdb.cli.output import count, note, say_json

if TYPE_CHECKING:
    from gemmdb.exchange.content import Exchanged

WIDTH = 100
"""Characters of an example on stderr. `--json` has more of them, in full."""


def export(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="The table to export. It is not changed.")],
    to: Annotated[
        str,
        typer.Option(
            metavar="FORMAT",
            help="csv, jsonl or parquet: every measurement, one per row, read back by `gemmdb import`."
            " verdicts: the best kernel of each problem and its gain, as CSV for a spreadsheet."
            " lookup-table: the best configs, for PyTorch's torch._inductor.config.lookup_table.table.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write. It is replaced if it exists.")],
    json: JsonFlag = False,
) -> None:
    """Write a table as CSV, JSON Lines, Parquet, a list of verdicts, or PyTorch's own lookup table.

    A line on stderr counts what the format cannot hold, and names examples. Parquet needs `pip install
    'gemmdb[parquet]'`.

    \b
    Use a lookup table without gemmdb, with mode="max-autotune":
      from torch._inductor import config
      from torch._inductor.lookup_table import LookupTableChoices
      from torch._inductor.virtualized import V
      config.lookup_table.table = json.load(open("table.json"))
      V.set_choices_handler(LookupTableChoices())

    \b
    Examples:
      gemmdb export mine.db --to csv -o rows.csv
      gemmdb export mine.db --to jsonl -o rows.jsonl --json
      gemmdb export mine.db --to verdicts -o verdicts.csv
      gemmdb export mine.db --to lookup-table -o table.json

    \b
    Exit codes: 0 done, 1 nothing could be carried over, 2 bad usage or bad input.
    """
    # Imported here: the formats load modules that no other command needs.
    from gemmdb.exchange.formats import export as export_table

    tell(export_table(table, out, to), json)


def tell(found: Exchanged, json: bool) -> None:
    """Print the result of an export or an import. Raises typer.Exit(1) if nothing was carried over."""
    if json:
        say_json("exchange", found.as_dict())
    for left in found.left:
        example = left.examples[0] if len(left.examples[0]) <= WIDTH else f"{left.examples[0][:WIDTH]}..."
        named = example if left.count == 1 else f"first {example}"
        note(f"not carried over: {left.count:,}, because: {left.reason} ({named})")
    rest = "" if found.total in (None, found.carried) else f", which now holds {found.total:,}"
    note(f"{count(found.carried, found.what)} from {found.source} in {found.out}{rest}")
    if not found.carried:
        raise typer.Exit(1)
