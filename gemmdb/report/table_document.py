"""A table's report as the JSON document that the page draws. Texts that repeat are stored once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gemmdb.kernels import names
from gemmdb.key.problem import Problem
from gemmdb.report.table import Limits, Row, TableReport

MOST_TIES = 8
"""The most tied configs that are named; the others are counted."""
MOST_RUNS = 200
MOST_OF_A_RUN = 3_000
"""The most characters of a run's own record."""


class Texts:
    """Texts, each stored once and named by its place."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}

    def place(self, text: str) -> int:
        """The place of a text."""
        return self.places.setdefault(text, len(self.places))


def document(report: TableReport) -> dict[str, Any]:
    """What the page draws. `columns` has one list per field, all as long as there are verdicts. The fields `family`,
    `pick`, `ties` and `protocol` hold places in the list `texts`."""
    texts = Texts()
    rows = [_row(row, texts) for row in report.rows]
    columns = {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
    return {
        "kind": "table",
        "title": report.name,
        "digest": report.digest,
        "problems": report.problems,
        "measurements": report.measurements,
        "verdicts": len(report.rows),
        "gain": report.gain,
        "beaten": report.beaten,
        "backends": report.backends,
        "spread": report.spread,
        "devices": [_device(one, report.origin) for one in report.devices],
        "partial": report.partial,
        "runs": [_run(run) for run in report.provenance[:MOST_RUNS]],
        "more_runs": max(len(report.provenance) - MOST_RUNS, 0),
        "columns": columns,
        "texts": list(texts.places),
    }


def _row(row: Row, texts: Texts) -> dict[str, Any]:
    verdict = row.verdict
    problem, (low, high) = verdict.problem, row.interval
    return {
        **sizes(problem),
        "computes": row.computes[0],
        "peak": _round(row.computes[1]),
        "family": texts.place(problem.family),
        "device": texts.place(verdict.device.sku),
        "l2": verdict.protocol.l2,
        "pick": texts.place(verdict.pick.text),
        "kernel": texts.place(names.kernel(verdict.pick)),
        "backend": verdict.pick.backend,
        "gain": _round(row.gain),
        "low": _round(low),
        "high": _round(high),
        "us": _round(verdict.expected_us),
        "aten_us": _round(verdict.aten_us),
        "floor_us": _round(row.floor_us),
        "spread": _round(verdict.spread),
        "ties": [texts.place(config.text) for config in verdict.ties[1 : MOST_TIES + 1]],
        "tied": len(verdict.ties),
        "runs": verdict.runs,
        "protocol": texts.place(f"{verdict.protocol.text} {verdict.toolchain.text}"),
    }


def sizes(problem: Problem) -> dict[str, Any]:
    """What charts and filters need of a problem: `flops` and `bytes` are those of one call."""
    return {
        "name": names.short(problem),
        "op": problem.op,
        "dtype": names.dtypes(problem),
        "batch": problem.batch,
        "m": problem.m,
        "n": problem.n,
        "k": problem.k,
        "flops": problem.flops,
        "bytes": problem.bytes,
    }


def _device(one: Limits, origin: Mapping[str, str]) -> dict[str, Any]:
    device = one.device
    return {
        "name": device.sku,
        "arch": device.arch,
        "units": device.units,
        "memory_gib": device.memory_gib,
        "gb_per_s": one.gb_per_s,
        "tflops": one.tflops,
        "estimated": one.estimated,
        "origin": origin.get(device.sku, ""),
    }


def _run(run: Mapping[str, Any]) -> dict[str, str]:
    """A run's record: what a line shows of it, and all of it as text."""
    command, request = run.get("command", ""), run.get("request")
    if isinstance(command, list):
        command = " ".join(map(str, command))
    asked = request if isinstance(request, Mapping) else {}
    try:
        text = json.dumps(run, indent=1, default=str)
    except RecursionError:
        text = "nested too deeply to show"
    return {
        "run": str(run.get("run", "")),
        "started": str(run.get("started") or run.get("date") or "")[:40],
        "shapes": str(asked.get("shapes", ""))[:200],
        "command": str(command)[:300],
        "toolchain": str(run.get("toolchain", ""))[:300],
        "text": text if len(text) <= MOST_OF_A_RUN else text[:MOST_OF_A_RUN] + "\n... (cut)",
    }


def _round(value: float) -> float:
    """Four significant digits, which is more than any measurement has."""
    return float(f"{value:.4g}")
