"""`gemmdb tables`: lists the tables in use and their contents."""

from __future__ import annotations

import typer

from gemmdb.cli.options import JsonFlag
from gemmdb.cli.output import note, say_json, say_table
from gemmdb.table.catalog import Catalog


def tables(context: typer.Context, json: JsonFlag = False) -> None:
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
    # A packed table holds one time per config, whatever number of measurements it was made of.
    say_table(
        ("device", "arch", "origin", "problems", "measurements", "digest", "file"),
        (
            (
                str(entry["device"]),
                str(entry["arch"]),
                str(entry["origin"]),
                ", ".join(f"{op} {number:,}" for op, number in entry["problems"].items()),
                f"{entry['measurements']:,}{' (packed)' if entry['packed'] else ''}",
                str(entry["digest"])[:12],
                str(entry["path"]),
            )
            for entry in entries
        ),
        right=("measurements",),
    )
