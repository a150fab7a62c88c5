"""Exporting: a table in one of the FORMATS."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from gemmdb.errors import InputError
from gemmdb.exchange import files, lookup_table, parquet, text_formats, verdicts
from gemmdb.exchange.report import Exchanged, Tally
from gemmdb.table.reader import Table

Writer = Callable[[Path, Path, Tally], int]
"""Writes the table at the first path to the second, and returns how many rows or entries. What it leaves goes to the
Tally."""


def export(table: Path, out: Path, to: str) -> Exchanged:
    """Write the table at `table` to the file `out` in the format `to`, one of FORMATS. `out` is replaced when all is
    written, or stays as it is.

    Raises InputError for an unknown format, for a missing package, and if `out` cannot be written or is the table;
    TableError if `table` is not a table.
    """
    if to not in FORMATS:
        raise InputError(f"unknown format {to!r}; known: {', '.join(FORMATS)}")
    if out.exists() and table.exists() and out.samefile(table):
        raise InputError(f"{out} is the table itself; name another file")
    what, write = FORMATS[to]
    tally = Tally()
    with files.replacing(out) as part:
        carried = write(table, part, tally)
    return Exchanged(str(table), out, to, what, carried, tally.left)


@contextlib.contextmanager
def _measured(path: Path) -> Iterator[Table]:
    """The table at `path`. Raises InputError if it holds no measurements."""
    with contextlib.closing(Table.open(path)) as table:
        if table.packed:
            formats = " and ".join(f"--to {name}" for name, (what, _) in FORMATS.items() if what != "measurement")
            raise InputError(
                f"{path} is packed and holds no measurements: {formats} export what it says, and the"
                " measurements are in the table that it was packed from"
            )
        yield table


def _csv(path: Path, out: Path, tally: Tally) -> int:
    with _measured(path) as table:
        for run in table.provenance():
            tally.leave("CSV has no place for what a run recorded about itself; jsonl and parquet have", run["run"])
        return text_formats.write_csv(out, table.measurements())


def _jsonl(path: Path, out: Path, tally: Tally) -> int:
    with _measured(path) as table:
        return text_formats.write_jsonl(out, table.measurements(), table.provenance())


def _parquet(path: Path, out: Path, tally: Tally) -> int:
    with _measured(path) as table:
        return parquet.write(out, table.measurements(), table.provenance())


def _verdicts(path: Path, out: Path, tally: Tally) -> int:
    with contextlib.closing(Table.open(path)) as table:
        return verdicts.write(out, table, tally)


def _lookup_table(path: Path, out: Path, tally: Tally) -> int:
    entries = lookup_table.build(path, tally)
    out.write_text(json.dumps(entries, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return len(entries)


FORMATS: Mapping[str, tuple[str, Writer]] = {
    "csv": ("measurement", _csv),
    "jsonl": ("measurement", _jsonl),
    "parquet": ("measurement", _parquet),
    "verdicts": ("verdict", _verdicts),
    "lookup-table": ("key", _lookup_table),
}
"""Every format by its name on the command line, with what it holds and what writes it."""
