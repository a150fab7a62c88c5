"""A Measurement as one flat record: a row of CSV, a line of JSON Lines, a row of Parquet."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any, Literal

from gemmdb.errors import InputError
from gemmdb.kernels.config import Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain
from gemmdb.table.measurement import Measurement, Protocol, Status, Times
from gemmdb.table.schema import parse_figures

Kind = Literal["text", "int", "float"]
COLUMNS: Mapping[str, Kind] = {
    "op": "text", "m": "int", "n": "int", "k": "int", "batch": "int", "sku": "text", "kernel": "text",
    "status": "text", "median_us": "float", "low_us": "float", "high_us": "float", "samples": "int",
    "aten_us": "float", "error": "float", "compile_s": "float", "detail": "text", "run": "text", "problem": "text",
    "config": "text", "device": "text", "figures": "text", "protocol": "text", "toolchain": "text",
}  # fmt: skip
"""The columns, in order, with their types. `problem` and the last ones are canonical texts. The first seven repeat
parts of these, for readers who filter and sort."""
OPTIONAL = frozenset({"median_us", "low_us", "high_us", "samples", "aten_us", "error", "compile_s"})
"""The columns that may be empty."""
_TIMES = ("median_us", "low_us", "high_us", "samples", "aten_us")

_FORMULA = ("=", "+", "-", "@", "'")

Record = dict[str, Any]
"""A value of each of COLUMNS: str, int, float, or None."""


def record(row: Measurement) -> Record:
    """The record of a Measurement."""
    problem, t = row.problem, row.times
    return {
        "op": problem.op, "m": problem.m, "n": problem.n, "k": problem.k, "batch": problem.batch,
        "sku": row.device.sku, "kernel": row.config.name, "status": row.status.value,
        **{name: None if t is None else getattr(t, name) for name in _TIMES},
        "error": row.error, "compile_s": row.compile_s, "detail": row.detail, "run": row.run,
        "problem": problem.text, "config": row.config.text, "device": row.device.text,
        "figures": json.dumps(dict(sorted(row.device.figures.items()))),
        "protocol": row.protocol.text, "toolchain": row.toolchain.text,
    }  # fmt: skip


def shown(value: Any) -> Any:
    """A cell of CSV. A text that a spreadsheet would take for a formula begins with an apostrophe: a stranger's table
    may name its device `=...`. So does one that begins with an apostrophe itself."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def unshown(cell: str) -> str:
    """The text of a cell that `shown` made."""
    return cell.removeprefix("'")


def measurement(found: Mapping[str, Any]) -> Measurement:
    """The Measurement of a record. Raises InputError for a value of another type, for anything that no table may hold,
    and where the first seven columns contradict the texts."""
    for name, kind in COLUMNS.items():
        _check(name, kind, found[name])
    times = None
    if any(found[name] is not None for name in _TIMES):
        if any(found[name] is None for name in _TIMES):
            raise InputError(f"some of {', '.join(_TIMES)} are empty, and others are not")
        times = Times(*(found[name] for name in _TIMES))
    row = Measurement(
        _problem(found["problem"]), _config(found["config"]), _device(found["device"], found["figures"]),
        _protocol(found["protocol"]), _toolchain(found["toolchain"]), found["run"], _status(found["status"]), times,
        found["error"], found["compile_s"], found["detail"],
    )  # fmt: skip
    said = {"op": row.problem.op, "m": row.problem.m, "n": row.problem.n, "k": row.problem.k,
            "batch": row.problem.batch, "sku": row.device.sku, "kernel": row.config.name}  # fmt: skip
    for name, value in said.items():
        if found[name] != value:
            raise InputError(f"{name} is {found[name]!r:.60}, but the texts of the row say {value!r:.60}")
    return row


def _check(name: str, kind: Kind, value: Any) -> None:
    if value is None and name in OPTIONAL:
        return
    wanted = {"text": str, "int": int, "float": float}[kind]
    # `==` tells NaN from a number, and SQLite stores integers of 64 bits.
    if type(value) is not wanted or value != value or (isinstance(value, int) and abs(value) >= 2**63):
        raise InputError(f"{name} must be {'an' if kind == 'int' else 'a'} {kind}, got {value!r:.60}")


def _status(text: str) -> Status:
    try:
        return Status(text)
    except ValueError as error:
        raise InputError(f"unknown status {text[:40]!r}; known: {', '.join(Status)}") from error


# Rows of one problem follow each other, and few devices, protocols and toolchains are in one file.
_problem = functools.lru_cache(maxsize=64)(Problem.parse)
_config = functools.lru_cache(maxsize=4096)(Config.parse)
_protocol = functools.lru_cache(maxsize=64)(Protocol.parse)
_toolchain = functools.lru_cache(maxsize=64)(Toolchain.parse)


@functools.lru_cache(maxsize=64)
def _device(text: str, figures: str) -> Device:
    return Device.parse(text, parse_figures(figures))
