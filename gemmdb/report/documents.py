"""Page data for a file: a table, a workload, or a comparison from `gemmdb compare --json`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gemmdb
from gemmdb import outcome
from gemmdb.errors import InputError
from gemmdb.kernels import names
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.outcome import Kind
from gemmdb.report import table, workload
from gemmdb.table.catalog import Catalog
from gemmdb.workload import entries

MAX_US = 1e12


def document(path: Path, catalog: Catalog) -> dict[str, Any]:
    """Return the page data for a file. The `catalog` serves the lookups for a workload. Raises InputError or TableError
    for a file of another kind."""
    return {**_document(path, catalog), "version": gemmdb.__version__}


def _document(path: Path, catalog: Catalog) -> dict[str, Any]:
    if entries.is_table(path):
        return table.document(path)
    if path.suffix == ".py":
        raise InputError(f"{path} is a program: run it with gemmdb report -- python {path}")
    text = "\n".join(line for _, line in entries.lines(path))
    try:
        found = json.loads(text)  # A workload is valid JSON as a whole only if it has one line.
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict) and "default_us" in found:
        return comparison(found, path)
    if isinstance(found, dict) and not {"problem", "uncovered"} & found.keys():
        raise InputError(_unknown(found, path))
    recorded = entries.read(path)
    if not recorded.entries and not recorded.uncovered:
        raise InputError(f"{path} contains no problems: gemmdb record --out {path} -- COMMAND... records some")
    return workload.of_workload(recorded, path.name, catalog).document()


def _unknown(found: Mapping[str, Any], path: Path) -> str:
    """Return what is wrong with a file of one JSON object of another kind. A workload that it names, or that lies
    beside it as beside tune.json, can be reported instead."""
    named = found.get("workload")
    beside = Path(named) if isinstance(named, str) and named.isprintable() else path.with_name("workload.jsonl")
    text = f"{path} is JSON, but neither a workload nor the output of gemmdb compare --json"
    return f"{text}; of its workload: gemmdb report {beside}" if beside.is_file() else text


def comparison(found: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the page data for the output of `gemmdb compare --json`: a program's time with and without gemmdb, GEMM by
    GEMM. Raises InputError for anything else. Fields that older versions did not print are omitted: the GEMMs' times,
    the speedup's interval and its verdict."""
    default_us, gemmdb_us = _number(found.get("default_us")), _number(found.get("gemmdb_us"))
    if not default_us or not gemmdb_us:
        raise InputError(f"{path}: default_us and gemmdb_us of a comparison are positive times in microseconds")
    slower, listed = _object(found, "slower", path), found.get("products")
    if not isinstance(listed, list):
        listed = [{"problem": text, "config": config} for text, config in _object(found, "configs", path).items()]
    products = [_compared(one, slower, path) for one in listed if isinstance(one, dict)]
    ends = [_number(one) for one in found["interval"]] if isinstance(found.get("interval"), list) else []
    return {
        "kind": "comparison",
        "title": path.name,
        "default_us": default_us,
        "gemmdb_us": gemmdb_us,
        "speedup": default_us / gemmdb_us,
        "error": _number(found.get("error")),
        "together_us": _number(found.get("together_us")) or 0.0,
        "interval": tuple(ends) if len(ends) == 2 and None not in ends else None,
        "verdict": str(found.get("verdict", ""))[:40],
        "products": sorted(products, key=lambda one: (-(one["aten_us"] or 0.0) * one["count"], one["problem"])),
    }


def _compared(one: Mapping[str, Any], slower: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the data of one GEMM: `us`, `aten_us`: expected microseconds per call of its kernel and of ATen, None if
    unknown; `lost_us`: microseconds that the program would gain by going back to ATen, 0 if the GEMM is not slower."""
    problem, config = one.get("problem"), one.get("config")
    if not isinstance(problem, str) or not isinstance(config, str):
        raise InputError(f"{path}: a GEMM of a comparison has a problem and a config")
    us, gain, count = _number(one.get("expected_us")), _number(one.get("speedup_vs_aten")), one.get("count")
    rung, note = str(one.get("rung", "")), str(one.get("note", ""))
    return {
        "name": _short(problem, lambda text: names.short(Problem.parse(text)), 300),
        "problem": problem,
        "config": config,
        "kernel": _short(config, lambda text: names.kernel(Config.parse(text)), 100),
        "rung": rung,
        "outcome": _outcome(one, rung, config, note),
        "count": count if type(count) is int and 0 < count < 2**53 else 1,
        "us": us,
        "aten_us": us * gain if us is not None and gain is not None else None,
        "lost_us": _number(slower.get(problem)) or 0.0,
        "note": note,
        "aten": config == ATEN.text,
    }


def _outcome(one: Mapping[str, Any], rung: str, config: str, note: str) -> str:
    """Return the outcome that was printed with a GEMM. Older versions printed none; without the evidence, this is the
    best guess, and empty without a rung."""
    printed = one.get("outcome")
    if isinstance(printed, str) and printed in set(Kind):
        return printed
    return outcome.of(rung, config, note).kind.value if rung else ""


def _object(found: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any]:
    value = found.get(name, {})
    if not isinstance(value, dict):
        raise InputError(f"{path}: {name} of a comparison is an object, by problem")
    return value


def _number(value: object) -> float | None:
    """Return `value` as a finite number from 0 to MAX_US, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_US:
        return None
    return float(value) if math.isfinite(value) else None


def _short(text: str, name: Callable[[str], str], limit: int) -> str:
    """Return the short name of a canonical text; any other text is truncated."""
    try:
        return name(text)[:limit]
    except InputError:
        return text[:limit]
