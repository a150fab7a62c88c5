"""CSV and JSON Lines with one line per measurement, and CSV with one line per verdict."""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gemmdb.errors import InputError
from gemmdb.exchange import bounded, flat
from gemmdb.exchange.content import Content, Tally
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Measurement
from gemmdb.table.reader import Table
from gemmdb.table.schema import parse_provenance
from gemmdb.table.verdict import Verdict

VERSION = 1
_HEAD = "gemmdb_rows"
MAX_RUNS = 100_000
"""Most runs accepted in one file."""

VERDICT_COLUMNS = (
    "op", "m", "n", "k", "batch", "a", "b", "out", "bias", "fusion", "device", "origin", "kernel", "speedup",
    "expected_us", "aten_us", "spread", "ties", "runs", "config", "problem",
)  # fmt: skip
"""`speedup`: over ATen; `spread`: half the relative width of its 95% interval; `ties`: number of configs tied with the
pick."""
HOT = "it was timed with a hot cache only, and the format has cold-cache times"
UNDECIDED = "it has no verdict: ATen has no full measurement"


def _cell(value: Any) -> Any:
    """Return a CSV cell. A text that a spreadsheet would evaluate as a formula is prefixed with an apostrophe: a
    stranger's table may name its device `=...`. So is a text that starts with an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "'")) else value


def _write(path: Path, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> int:
    count = -1
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        for count, cells in enumerate(itertools.chain([columns], rows)):  # noqa: B007 - it counts
            writer.writerow(map(_cell, cells))
    return count


def write_csv(table: Table, path: Path, tally: Tally) -> int:
    """Write a table's rows as CSV with a header line. Returns the number of rows. Floats round-trip exactly."""
    for run in table.provenance():
        tally.leave("CSV cannot store a run's provenance; jsonl and parquet can", run["run"])
    return _write(path, flat.COLUMNS, (flat.record(row).values() for row in table.measurements()))


def write_verdicts(table: Table, path: Path, tally: Tally) -> int:
    """Write a table's verdicts as CSV with a header line (export only). Returns the number of verdicts."""
    return _write(path, VERDICT_COLUMNS, (_cells(*found) for found in each_verdict(table, tally)))


def each_verdict(table: Table, tally: Tally) -> Iterator[tuple[Problem, Device, Verdict]]:
    """Yield the verdict that a lookup would use for each problem and device of a table. Lookups need cold-cache times,
    so problems timed only with a hot cache, and those without any verdict, go to `tally`."""
    for problem, device in table.pairs():
        verdict = table.verdict(problem, device)
        if verdict is not None:
            yield problem, device, verdict
        else:
            hot = table.verdict(problem, device, l2="hot")
            tally.leave(HOT if hot is not None else UNDECIDED, f"{problem.text} on {device.sku}")


def _cells(problem: Problem, device: Device, verdict: Verdict) -> tuple[str | int | float, ...]:
    origin = "modelled" if verdict.protocol.clock == "model" else "measured"
    bias = "none" if problem.bias is None else problem.bias.text
    figures = (verdict.speedup, verdict.expected_us, verdict.aten_us, verdict.spread)
    return (
        problem.op, problem.m, problem.n, problem.k, problem.batch, problem.a.text, problem.b.text, problem.out, bias,
        problem.fusion, device.sku, origin, verdict.pick.name, *(round(figure, 4) for figure in figures),
        len(verdict.ties), verdict.runs, verdict.pick.text, problem.text,
    )  # fmt: skip


def read_csv(path: Path) -> Content:
    """Read the rows of a CSV file that `write_csv` wrote, with columns in any order. Raises InputError with file and
    line when a row is reached."""
    return Content(_csv_rows(path), [])


def _csv_rows(path: Path) -> Iterator[Measurement]:
    reader = csv.reader((line for _, line in bounded.lines(path)), strict=True)
    try:
        names = next(reader, None)
        if names is None or sorted(names) != sorted(flat.COLUMNS):
            missing = [name for name in flat.COLUMNS if name not in (names or ())]
            raise InputError(f"its columns are not those of an export; missing: {', '.join(missing)[:200] or 'none'}")
        for cells in filter(None, reader):  # An editor may have added a blank line.
            if len(cells) != len(names):
                raise InputError(f"{len(cells)} cells for {len(names)} columns")
            found = dict(zip(names, cells, strict=True))
            yield flat.measurement({name: _typed(name, kind, found[name]) for name, kind in flat.COLUMNS.items()})
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num}: not CSV ({error})") from error
    except InputError as error:
        raise _at(path, reader.line_num, error) from error


def _typed(name: str, kind: type[str] | type[int] | type[float], cell: str) -> str | int | float | None:
    if not cell and name in flat.OPTIONAL:
        return None
    return cell.removeprefix("'") if issubclass(kind, str) else bounded.number(cell, kind)


def write_jsonl(table: Table, path: Path, tally: Tally) -> int:
    """Write a header object with the runs' provenance, then one JSON object per row. Returns the number of rows. An
    infinite error is written as the string "inf"."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps({_HEAD: VERSION, "runs": table.provenance()}, allow_nan=False) + "\n")
        for count, row in enumerate(table.measurements(), 1):  # noqa: B007 - it counts
            record = {name: "inf" if value == math.inf else value for name, value in flat.record(row).items()}
            file.write(json.dumps(record, allow_nan=False) + "\n")
    return count


def read_jsonl(path: Path) -> Content:
    """Read a file that `write_jsonl` wrote. Raises InputError with file and line; errors in a row are raised when that
    row is reached."""
    source = bounded.lines(path)
    first = next(source, None)
    head = bounded.parse_json(first[1], path) if first else None
    if not isinstance(head, dict) or head.get(_HEAD) != VERSION:
        raise InputError(f"{path}:1: not a gemmdb JSON Lines export of this version")
    return Content(_json_rows(path, source), checked_runs(head.get("runs"), f"{path}:1"))


def checked_runs(runs: Any, where: str) -> list[dict[str, Any]]:
    """Return the runs in the form that a Store takes. Raises InputError, which names `where`, for anything else."""
    if not isinstance(runs, list) or len(runs) > MAX_RUNS:
        raise InputError(f"{where}: its runs are not a list of at most {MAX_RUNS:,}")
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
        if not line.strip():
            continue
        found = bounded.parse_json(line.rstrip("\n"), path, number)
        if not isinstance(found, dict) or found.keys() != flat.COLUMNS.keys():
            raise InputError(f"{path}:{number}: not an object with the columns of an export")
        if found["error"] == "inf":
            found["error"] = math.inf
        try:
            yield flat.measurement(found)
        except InputError as error:
            raise _at(path, number, error) from error


def _at(path: Path, number: int, error: InputError) -> InputError:
    """Return the error prefixed with file and line, unless it already has them."""
    text = str(error)
    return error if text.startswith(str(path)) else InputError(f"{path}:{number}: {text}")
