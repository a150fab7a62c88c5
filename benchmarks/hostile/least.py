"""How close measured times come to the least that a table may claim (`gemmdb.cost.possible`).

    python -m benchmarks.hostile least [--out benchmarks/results/hostile/least.json]

For every row of the archives in benchmarks/results, the time and that of ATen beside it are compared with what the data
sheet's rates allow: the operations, and the bytes that are surely read. A row's ratio is the smaller one's to the
larger of both. The margin is how far below 1 a ratio may be. For each state of the cache and kind of row, the smallest
ratio is written, its problem, and the shortest time of all.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, now
from gemmdb.cost.possible import MARGIN, least_us
from gemmdb.generators.files import archive
from gemmdb.table.measurement import Measurement

RESULTS = ROOT / "benchmarks" / "results"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--out", type=Path, default=RESULTS / "hostile" / "least.json")


def main(options: argparse.Namespace) -> None:
    """Read, write and print."""
    rows, shortest = 0, float("inf")
    closest: dict[str, dict[str, Any]] = {}
    for path in sorted(RESULTS.rglob("rows-*.jsonl.xz")):
        for row in archive.read(path):
            if row.times is None:
                continue
            us = min(row.times.median_us, row.times.aten_us)
            rows, shortest = rows + 1, min(shortest, us)
            _note(closest, row, us)
    document = {
        "what": "the smallest ratios of measured times to the least by the data sheet",
        "date": now(), "margin": MARGIN, "rows": rows, "shortest_us": shortest, "closest": closest,
    }  # fmt: skip
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document, indent=1))


def _note(closest: dict[str, dict[str, Any]], row: Measurement, us: float) -> None:
    """Keep the row if none of its kind is closer: by the operations alone (as with a hot cache), and by all."""
    for bound, l2 in (("operations", "hot"), ("all", row.protocol.l2)):
        kind = f"{row.device.sku}, {row.protocol.l2}, {row.status.value}, {bound}"
        ratio = us / (MARGIN * least_us(row.problem, row.device, l2))
        if kind not in closest or ratio < closest[kind]["ratio"]:
            closest[kind] = {"ratio": ratio, "us": us, "problem": row.problem.text, "config": row.config.text}
