"""Page data for a table: each verdict against ATen and the roofline."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
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

MAX_VERDICTS = 8_000
"""Most verdicts on one page, which then stays below 2.5 MiB."""
MAX_TIES = 8
"""Most tied configs listed by name; the others are counted."""
MAX_RUNS = 200
MAX_RUN_CHARACTERS = 3_000
"""Most characters of a run's provenance."""
MAX_RUNS_CHARACTERS = 100_000
"""Most characters of the provenance of all runs."""
_VERSIONS = ("torch", "triton", "cutlass", "driver")
_TEXTS = ("op", "dtype", "rest", "family", "device", "l2", "pick", "kernel", "backend", "protocol")
"""The columns of texts."""


def document(path: Path, limit: int = MAX_VERDICTS) -> dict[str, Any]:
    """Return the page data for a table. Above `limit` verdicts, it has a random sample and `partial` is true. `columns`
    has one list per field, each with one value per verdict. Repeated texts are stored once: `ties` and the fields in
    `encoded` are indices into the list `texts`. `rest`: the problem's short name after its sizes; `roof`: an index into
    `roofs`, which has how a problem is computed and the device's TFLOP/s for it. Raises TableError."""
    with Table.open(path) as table:
        summary, found, runs = table.summary(), tuple(islice(rows(table), limit + 1)), table.provenance()
        devices, digest = table.devices(), table.digest
    shown, texts, roofs = found[:limit], Places(), Places()
    cells = [_row(row, texts, roofs) for row in shown]
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
        "busy": sum(row.busy for row in shown),
        "backends": dict(sorted(backends.items(), key=lambda item: (-item[1], item[0]))),
        "spread": median(row.verdict.spread for row in shown) if shown else 0.0,
        "devices": [_device(device, origins.get(device.sku, "")) for device in devices],
        "partial": len(found) > limit,
        "runs": _runs(runs[:MAX_RUNS]),
        "more_runs": max(len(runs) - MAX_RUNS, 0),
        "columns": {name: [row[name] for row in cells] for name in (cells[0] if cells else ())},
        "encoded": list(_TEXTS),
        "texts": texts.values,
        "roofs": roofs.values,
    }


class Places:
    """Distinct values in the order in which they appear. Calling it returns the index of a value."""

    def __init__(self) -> None:
        self._places: dict[Hashable, int] = {}

    def __call__(self, value: Hashable) -> int:
        return self._places.setdefault(value, len(self._places))

    @property
    def values(self) -> list[Hashable]:
        return list(self._places)


def _row(row: Row, texts: Places, roofs: Places) -> dict[str, Any]:
    verdict = row.verdict
    problem = verdict.problem
    sized = sizes(problem)
    computes, tflops = peak(problem, verdict.device)
    found = {
        **sized,
        "rest": sized["name"].partition(f"{problem.m}x{problem.n}x{problem.k}")[2],
        "family": problem.family,
        "device": verdict.device.sku,
        "l2": verdict.protocol.l2,
        "pick": verdict.pick.text,
        "kernel": names.kernel(verdict.pick),
        "backend": verdict.pick.backend,
        "roof": roofs((computes, _round(tflops))),
        "gain": _round(row.gain),
        "us": _round(verdict.expected_us),
        "floor_us": _round(row.floor_us),
        "spread": _round(verdict.spread),
        "ties": [texts(config.text) for config in verdict.ties[1 : MAX_TIES + 1]],
        "tied": len(verdict.ties),
        "runs": verdict.runs,
        "busy": int(row.busy),
        "protocol": f"{verdict.protocol.text} {verdict.toolchain.text}",
    }
    del found["name"]
    return {name: texts(value) if name in _TEXTS else value for name, value in found.items()}


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


def _runs(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the provenance of runs, in full as far as MAX_RUNS_CHARACTERS allows."""
    found, left = [], MAX_RUNS_CHARACTERS
    for run in map(_run, runs):
        left -= len(run["text"])
        found.append(run if left >= 0 else {**run, "text": ""})
    return found


def _run(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's provenance: what it measured and with which versions, and the full text. `day` and `versions` are
    empty if the run did not record them."""
    request = run.get("request")
    asked: Mapping[str, Any] = request if isinstance(request, Mapping) else {}
    try:
        text = json.dumps(run, indent=1, default=str)
    except RecursionError:
        text = "nested too deeply to show"
    return {
        "day": str(run.get("started") or run.get("date") or "")[:10],
        "shapes": str(asked.get("shapes", "")).rpartition("/")[2][:80],
        "effort": str(asked.get("effort", ""))[:20],
        "versions": _versions(str(run.get("toolchain", ""))),
        "text": text if len(text) <= MAX_RUN_CHARACTERS else text[:MAX_RUN_CHARACTERS] + "\n... (cut)",
    }


def _versions(text: str) -> str:
    """Return the versions of a toolchain's text that matter to a reader: `torch 2.11.0+cu130, triton 3.6.0`."""
    pairs = (word.partition("=") for word in text[:300].split())
    return ", ".join(f"{name} {value}" for name, _, value in pairs if value and name in _VERSIONS)


def _round(value: float) -> float:
    """Round to four significant digits, more than any measurement has."""
    return float(f"{value:.4g}")
