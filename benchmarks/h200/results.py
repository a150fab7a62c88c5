"""The folders of H200 results: where they are, and what they hold."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT
from gemmdb.generators.request import BuildReport

RESULTS = ROOT / "benchmarks" / "results" / "h200"
ARCHIVES, BUILD, PEERS = "rows-*.jsonl.xz", "build.json", "peers.jsonl"
"""The files of a folder: archives of all rows, the reports of its builds, the comparison with peers."""


def folders() -> list[Path]:
    """The folders of results that hold rows, ordered by name, which is a date. Raises SystemExit if there is none."""
    found = sorted({path.parent for path in RESULTS.glob(f"20*/{ARCHIVES}")})
    if not found:
        raise SystemExit(f"no folder of {RESULTS} holds {ARCHIVES}")
    return found


def newest() -> Path:
    """The last of `folders`. It holds all rows of its protocol that there were at its date."""
    return folders()[-1]


def archives(folder: Path) -> list[Path]:
    """The archives of a folder. Raises SystemExit if there are none."""
    found = sorted(folder.glob(ARCHIVES))
    if not found:
        raise SystemExit(f"{folder} holds no {ARCHIVES}")
    return found


def builds(folder: Path | None) -> list[dict[str, Any]]:
    """What the builds behind a folder's rows did and cost; empty if the folder does not say."""
    path = folder / BUILD if folder else None
    return list(json.loads(path.read_text())) if path and path.exists() else []


def described(report: BuildReport) -> dict[str, Any]:
    """The report of a build, JSON-ready, without its file and device."""
    kept = {name: value for name, value in report.document().items() if name not in ("out", "device")}
    return {**kept, "gpu_seconds_per_problem": report.seconds_per_job, "busy_share": report.busy_share}


def with_cuda_kernels(folder: Path, other: str | None) -> Path:
    """Make `folder` an Inductor cache that holds the CUDA kernels of the cache `other` and nothing else, because nvcc
    takes a minute for each. Files are hard-linked if possible, else copied."""
    folder.mkdir(parents=True, exist_ok=True)
    for source in Path(other).glob("*/*.cu") if other else ():
        for file in source.parent.glob(f"{source.stem}*"):
            target = folder / source.parent.name / file.name
            target.parent.mkdir(exist_ok=True)
            if not target.exists():
                try:
                    os.link(file, target)
                except OSError:
                    shutil.copy(file, target)
    return folder
