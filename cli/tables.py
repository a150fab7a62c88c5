"""`gemmdb tables`: lists the tables in use and their contents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from gemmdb.cli.options import JsonFlag, WideFlag
from gemmdb.cli.output import note, say_json
from gemmdb.cli.table import Cell, Column, say_table
from gemmdb.table.catalog import Catalog

COLUMNS = (
    Column("device", rigid=True), Column("arch", rigid=True), Column("origin", rigid=True, drop=1),
    Column("problems", right=True, rigid=True), Column("ops", drop=4),
    Column("measurements", right=True, rigid=True, drop=2), Column("digest", rigid=True, drop=3),
    Column("file", cut=True, floor=30),
)  # fmt: skip


def tables(context: typer.Context, wide: WideFlag = False, json: JsonFlag = False) -> None:
    """List the tables in use and what they hold, or pull, push and pack tables.

    The order is that of a lookup: first the tables of GEMMDB_TABLES, then your own (GEMMDB_USER_TABLE and what `gemmdb
    build` wrote), then those of installed packages, then the shipped ones.

    \b
    Examples:
      gemmdb tables
      gemmdb tables --json
      gemmdb tables pull --help
      gemmdb tables pack --help

    \b
    Exit codes: 0 done, even if there is no table; 2 bad usage or bad input.
    """
    if context.invoked_subcommand is not None:
        return
    entries = [entry for table in Catalog.load().tables for entry in table.summary()]
    if json:
        say_json("tables", {"tables": entries})
        return
    if not entries:
        note("no tables: gemmdb build --arch native makes one for this machine")
        return
    say_table(COLUMNS, map(_row, entries), whole=wide)


def _row(entry: Mapping[str, Any]) -> tuple[str | Cell, ...]:
    ops = ", ".join(f"{op} {number:,}" for op, number in entry["problems"].items())
    return (
        Cell(str(entry["device"]), "bold"), str(entry["arch"]),
        Cell(str(entry["origin"]), "green" if entry["origin"] == "measured" else "yellow"),
        f"{sum(entry['problems'].values()):,}", ops,
        f"{entry['measurements']:,}{' (packed)' if entry['packed'] else ''}", str(entry["digest"])[:12],
        str(entry["path"]),
    )  # fmt: skip
