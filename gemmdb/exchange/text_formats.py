"""CSV and JSON Lines: one line per measurement."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gemmdb.errors import InputError
from gemmdb.exchange import files, flat
from gemmdb.table.measurement import Measurement
from gemmdb.table.rows import parse_provenance

VERSION = 1
_HEAD = "gemmdb_rows"
MOST_RUNS = 100_000
"""The most runs that the head of a file may describe."""

Runs = list[dict[str, Any]]


def write_csv(path: Path, rows: Iterable[Measurement]) -> int:
    """Write rows as CSV with a header line. Returns how many. Floats are written so that they are read back exactly."""
    count = 0
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(flat.COLUMNS), lineterminator="\n")
        writer.writeheader()
        for count, row in enumerate(rows, 1):  # noqa: B007 - it counts
            writer.writerow({name: flat.shown(value) for name, value in flat.record(row).items()})
    return count


def read_csv(path: Path) -> Iterator[Measurement]:
    """The rows of a CSV file that `write_csv` wrote, the columns in any order. Raises InputError with file and line."""
    number = 0

    def counted() -> Iterator[str]:
        nonlocal number
        for number, line in files.lines(path):  # noqa: B007 - a message names the line
            yield line

    try:
        reader = csv.reader(counted(), strict=True)
        names = next(reader, None)
        if names is None or sorted(names) != sorted(flat.COLUMNS):
            missing = [name for name in flat.COLUMNS if name not in (names or ())]
            raise InputError(f"not the columns of an export; missing: {', '.join(missing)[:200] or 'none'}")
        for cells in reader:
            if len(cells) != len(names):
                raise InputError(f"{len(cells)} cells, and {len(names)} columns")
            yield flat.measurement(_typed(dict(zip(names, cells, strict=True))))
    except csv.Error as error:
        raise InputError(f"{path}:{number}: not CSV ({error})") from error
    except InputError as error:
        raise _at(path, number, error) from error


def write_jsonl(path: Path, rows: Iterable[Measurement], runs: Runs) -> int:
    """Write a head with what the runs recorded, and then one JSON object per row. Returns how many rows. An infinite
    error is written as the string "inf"."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps({_HEAD: VERSION, "runs": runs}, allow_nan=False) + "\n")
        for count, row in enumerate(rows, 1):  # noqa: B007 - it counts
            record = {name: "inf" if value == math.inf else value for name, value in flat.record(row).items()}
            file.write(json.dumps(record, allow_nan=False) + "\n")
    return count


def read_jsonl(path: Path) -> tuple[Runs, Iterator[Measurement]]:
    """The runs and the rows of a file that `write_jsonl` wrote. Raises InputError with file and line, for a row when it
    is reached."""
    source = files.lines(path)
    first = next(source, None)
    head = files.parse_json(first[1], path) if first else None
    if not isinstance(head, dict) or head.get(_HEAD) != VERSION:
        raise InputError(f"{path}:1: not an export of gemmdb in JSON Lines, or one of another version")
    return checked_runs(head.get("runs"), f"{path}:1"), _json_rows(path, source)


def checked_runs(runs: Any, where: str) -> Runs:
    """Runs as a Store takes them. Raises InputError, which names `where`, for anything else."""
    if not isinstance(runs, list) or len(runs) > MOST_RUNS:
        raise InputError(f"{where}: its runs are not a list of at most {MOST_RUNS:,}")
    for run in runs:
        if not isinstance(run, dict) or not isinstance(run.get("run"), str) or not 0 < len(run["run"]) <= 64:
            raise InputError(f"{where}: a run without its name")
        try:
            parse_provenance(json.dumps(run, allow_nan=False))
        except ValueError as error:
            raise InputError(f"{where}: a run's provenance is not JSON ({error})") from error
    return runs


def _json_rows(path: Path, source: Iterable[tuple[int, str]]) -> Iterator[Measurement]:
    for number, line in source:
        found = files.parse_json(line.rstrip("\n"), path, number) if line.strip() else None
        if not isinstance(found, dict) or found.keys() != flat.COLUMNS.keys():
            raise InputError(f"{path}:{number}: not an object with the columns of an export")
        if found["error"] == "inf":
            found["error"] = math.inf
        try:
            yield flat.measurement(found)
        except InputError as error:
            raise _at(path, number, error) from error


def _typed(cells: Mapping[str, str]) -> flat.Record:
    """The values of the cells, by the types of their columns. An empty cell of an optional column is None."""
    found: flat.Record = {}
    for name, kind in flat.COLUMNS.items():
        cell = cells[name]
        if not cell and name in flat.OPTIONAL:
            found[name] = None
        elif kind == "text":
            found[name] = flat.unshown(cell)
        else:
            found[name] = files.whole_number(cell) if kind == "int" else files.real_number(cell)
    return found


def _at(path: Path, number: int, error: InputError) -> InputError:
    """The error with file and line in front, unless they are there already."""
    text = str(error)
    return error if text.startswith(str(path)) else InputError(f"{path}:{number}: {text}")
