"""Measurements as flat records: a CSV row, a JSON line, or a Parquet row."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from gemmdb.errors import InputError, choices
from gemmdb.kernels.config import Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain
from gemmdb.table.measurement import Measurement, Protocol, Status, Times
from gemmdb.table.schema import parse_figures

COLUMNS: Mapping[str, type[str] | type[int] | type[float]] = {
    "op": str, "m": int, "n": int, "k": int, "batch": int, "sku": str, "kernel": str, "status": str, "median_us": float,
    "low_us": float, "high_us": float, "samples": int, "aten_us": float, "error": float, "compile_s": float,
    "detail": str, "run": str, "problem": str, "config": str, "device": str, "figures": str, "protocol": str,
    "toolchain": str,
}  # fmt: skip
"""Columns in order, with their types. `problem` and the last ones are canonical texts. The first seven repeat parts of
these texts, for readers who filter and sort."""
OPTIONAL = frozenset({"median_us", "low_us", "high_us", "samples", "aten_us", "error", "compile_s"})
"""Columns that may be empty."""
_TIMES = ("median_us", "low_us", "high_us", "samples", "aten_us")

Record = dict[str, Any]
"""A value for each of COLUMNS: str, int, float, or None."""


def record(row: Measurement) -> Record:
    """Return the record of a Measurement."""
    t = row.times
    return {
        **_names(row.problem, row.device, row.config), "status": row.status.value,
        **{name: None if t is None else getattr(t, name) for name in _TIMES},
        "error": row.error, "compile_s": row.compile_s, "detail": row.detail, "run": row.run,
        "problem": row.problem.text, "config": row.config.text, "device": row.device.text,
        "figures": json.dumps(dict(sorted(row.device.figures.items()))),
        "protocol": row.protocol.text, "toolchain": row.toolchain.text,
    }  # fmt: skip


def _names(problem: Problem, device: Device, config: Config) -> Record:
    """Return the columns that repeat parts of the texts."""
    return {"op": problem.op, "m": problem.m, "n": problem.n, "k": problem.k, "batch": problem.batch,
            "sku": device.sku, "kernel": config.name}  # fmt: skip


def measurement(found: Mapping[str, Any]) -> Measurement:
    """Return the Measurement of a record. Raises InputError for a value of the wrong type, for anything that no table
    may contain, and if the first seven columns contradict the texts."""
    for name, kind in COLUMNS.items():
        value = found[name]
        # `==` rejects NaN, and SQLite stores 64-bit integers.
        fits = type(value) is kind and value == value and (not isinstance(value, int) or abs(value) < 2**63)
        if not fits and not (value is None and name in OPTIONAL):
            wanted = {str: "a text", int: "an int", float: "a float"}[kind]
            raise InputError(f"{name} must be {wanted}, got {value!r:.60}")
    if found["status"] not in list(Status):
        raise InputError(f"unknown status {found['status'][:40]!r}; {choices(found['status'], Status)}")
    times = None
    if any(found[name] is not None for name in _TIMES):
        if any(found[name] is None for name in _TIMES):
            raise InputError(f"some of {', '.join(_TIMES)} are empty, and others are not")
        times = Times(*(found[name] for name in _TIMES))
    row = Measurement(
        _problem(found["problem"]), _config(found["config"]), _device(found["device"], found["figures"]),
        _protocol(found["protocol"]), _toolchain(found["toolchain"]), found["run"], Status(found["status"]), times,
        found["error"], found["compile_s"], found["detail"],
    )  # fmt: skip
    for name, value in _names(row.problem, row.device, row.config).items():
        if found[name] != value:
            raise InputError(f"{name} is {found[name]!r:.60}, but the texts of the row say {value!r:.60}")
    return row


# Rows of one problem are consecutive, and a file has few devices, protocols and toolchains.
_problem = functools.lru_cache(maxsize=64)(Problem.parse)
_config = functools.lru_cache(maxsize=4096)(Config.parse)
_protocol = functools.lru_cache(maxsize=64)(Protocol.parse)
_toolchain = functools.lru_cache(maxsize=64)(Toolchain.parse)


@functools.lru_cache(maxsize=64)
def _device(text: str, figures: str) -> Device:
    return Device.parse(text, parse_figures(figures))
