"""Rebuild the shipped H200 table from the committed timings, and the manifest beside it.

    python benchmarks/h200_ship.py

Writes `tables/sm90-nvidia-h200.db` (winners, ties, the fastest, a sample of the rest) and `tables/manifest.json`.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Any

from h200_import import measurements

from gemmdb.generators.compact import compact
from gemmdb.generators.manifest import write_manifest
from gemmdb.generators.store import Store

ROOT = Path(__file__).parent.parent
RAW = "benchmarks/results/h200/2026-11-20b/rows.jsonl.gz"
SHIPPED = ROOT / "tables" / "sm90-nvidia-h200.db"


def provenance(run: str) -> dict[str, Any]:
    """What made the rows of a run."""
    return {
        "run": run,
        "date": "2026-11-20",
        "command": "python benchmarks/h200_build.py --problems benchmarks/results/h200/problems.txt",
        "timings": RAW,
        "timings_sha256": hashlib.sha256((ROOT / RAW).read_bytes()).hexdigest(),
        "table": "python benchmarks/h200_ship.py",
    }


def main() -> None:
    """Import every timing into a table of its own, compact that to the shipped one, and describe it."""
    rows = list(measurements(ROOT / RAW))
    with tempfile.TemporaryDirectory() as folder:
        full = Path(folder) / "full.db"
        with Store.open(full) as store:
            store.add_runs(provenance(run) for run in sorted({row.run for row in rows}))
            print(f"{store.add(rows):,} rows, {store.refresh():,} verdicts")
        print(f"{compact(full, SHIPPED):,} rows shipped in {SHIPPED.stat().st_size / 2**20:.1f} MiB")
    write_manifest(SHIPPED.parent)


if __name__ == "__main__":
    main()
