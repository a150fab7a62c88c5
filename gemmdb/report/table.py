"""Page data for a table: each verdict against ATen and the roofline."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from gemmdb.cost.roofline import limits
from gemmdb.kernels import names
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.report.rows import Row, geometric, peak, rows
from gemmdb.table.reader import Table

MAX_VERDICTS = 10_000
"""Most verdicts on one page. A browser draws this many points in a second or two."""
MAX_TIES = 8
"""Most tied configs listed by name; the others are counted."""
MAX_RUNS = 200
MAX_RUN_CHARACTERS = 3_000
"""Most characters of a run's provenance."""


def document(path: Path, limit: int = MAX_VERDICTS) -> dict[str, Any]:
    """Return the page data for a table. Above `limit` verdicts, it has a random sample and `partial` is true. `columns`
    has one list per field, each with one value per verdict. Repeated texts are stored once: the fields `family`,
    `device`, `pick`, `kernel`, `ties` and `protocol` are indices into the list `texts`. Raises TableError."""
    with Table.open(path) as table:
        summary, found, runs = table.summary(), tuple(islice(rows(table), limit + 1)), table.provenance()
        devices, digest = table.devices(), table.digest
    shown, texts = found[:limit], dict[str, int]()
    cells = [_row(row, texts) for row in shown]
    origins = {entry["device"]: entry["origin"] for entry in summary}
    backends = Counter(row.verdict.pick.backend for row in shown)
    return {
        "kind": "table",
        "title": path.name,
        "digest": digest,
        "problems": sum(sum(entry["problems"].values()) for entry in summary),
        "measurements": sum(entry["measurements"] for entry in summary),
        "verdicts": len(shown),
        "gain": geometric(row.gain for row in shown),
        "beaten": sum(row.interval[0] > 1 for row in shown),  # Beyond noise.
        "backends": dict(sorted(backends.items(), key=lambda item: (-item[1], item[0]))),
        "spread": median(row.verdict.spread for row in shown) if shown else 0.0,
        "devices": [_device(device, origins.get(device.sku, "")) for device in devices],
        "partial": len(found) > limit,
        "runs": [_run(run) for run in runs[:MAX_RUNS]],
        "more_runs": max(len(runs) - MAX_RUNS, 0),
        "columns": {name: [row[name] for row in cells] for name in (cells[0] if cells else ())},
        "texts": list(texts),
    }


def _row(row: Row, texts: dict[str, int]) -> dict[str, Any]:
    verdict = row.verdict
    problem, (low, high) = verdict.problem, row.interval
    computes, tflops = peak(problem, verdict.device)

    def place(text: str) -> int:
        return texts.setdefault(text, len(texts))

    return {
        **sizes(problem),
        "computes": computes,
        "peak": _round(tflops),
        "family": place(problem.family),
        "device": place(verdict.device.sku),
        "l2": verdict.protocol.l2,
        "pick": place(verdict.pick.text),
        "kernel": place(names.kernel(verdict.pick)),
        "backend": verdict.pick.backend,
        "gain": _round(row.gain),
        "low": _round(low),
        "high": _round(high),
        "us": _round(verdict.expected_us),
        "aten_us": _round(verdict.aten_us),
        "floor_us": _round(row.floor_us),
        "spread": _round(verdict.spread),
        "ties": [place(config.text) for config in verdict.ties[1 : MAX_TIES + 1]],
        "tied": len(verdict.ties),
        "runs": verdict.runs,
        "protocol": place(f"{verdict.protocol.text} {verdict.toolchain.text}"),
    }


def sizes(problem: Problem) -> dict[str, Any]:
    """Return the sizes of a problem for charts and filters; `flops` and `bytes` are per call."""
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


def _device(device: Device, origin: str) -> dict[str, Any]:
    """Return a device with its peaks. `estimated`: they are derived from its number of units, not from figures in the
    table."""
    gb_per_s, tflops = limits(device)
    return {
        "name": device.sku,
        "arch": device.arch,
        "units": device.units,
        "memory_gib": device.memory_gib,
        "gb_per_s": gb_per_s,
        "tflops": tflops,
        "estimated": not {"copy_gb_per_s", "peak_tflops"} <= device.figures.keys(),
        "origin": origin,
    }


def _run(run: Mapping[str, Any]) -> dict[str, str]:
    """Return a run's provenance: a one-line summary, and the full text."""
    command, request = run.get("command", ""), run.get("request")
    if isinstance(command, list):
        command = " ".join(map(str, command))
    shapes = request.get("shapes", "") if isinstance(request, Mapping) else ""
    try:
        text = json.dumps(run, indent=1, default=str)
    except RecursionError:
        text = "nested too deeply to show"
    return {
        "run": str(run.get("run", "")),
        "started": str(run.get("started") or run.get("date") or "")[:40],
        "shapes": str(shapes)[:200],
        "command": str(command)[:300],
        "toolchain": str(run.get("toolchain", ""))[:300],
        "text": text if len(text) <= MAX_RUN_CHARACTERS else text[:MAX_RUN_CHARACTERS] + "\n... (cut)",
    }


def _round(value: float) -> float:
    """Round to four significant digits, more than any measurement has."""
    return float(f"{value:.4g}")
