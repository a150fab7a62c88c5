"""Build the rows of the shipped H200 table, on all GPUs of the host, from where the last build stopped.

    python benchmarks/h200_build.py --out OUT [--rows FOLDER] [--shapes h200] [--effort standard] [--minutes 8]

FOLDER holds the archives of an earlier build (default: the newest of benchmarks/results/h200): its rows are put into
the table first, and nothing of them is measured again. OUT receives archives of all rows, the old ones included, and
`build.json`: what this build and those before it did and cost. `h200_ship.py` makes the shipped table from a copy of
OUT.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from h200_results import BUILD, builds, newest, parts, run

from gemmdb.generators.build.build import BuildReport, BuildRequest, build
from gemmdb.generators.files import archive
from gemmdb.generators.interfaces.progress import State

EVERY_S = 15.0
"""Seconds between two lines of progress."""


@dataclass
class Lines:
    """Prints how far a build is."""

    said: float = 0.0

    def update(self, state: State) -> None:
        """Say it, unless that was done a moment ago."""
        if time.monotonic() - self.said >= EVERY_S or state.phase == "finished":
            self.said = time.monotonic()
            current = state.current.head if state.current else ""
            print(f"{state.done} of {state.total} ({state.before} before), {state.phase} {current}", flush=True)


def described(report: BuildReport, restored: int, seconds: dict[str, float]) -> dict[str, Any]:
    """The report of a build as JSON."""
    return {
        **{name: value for name, value in report.document().items() if name not in ("out", "device")},
        "device": report.device.text,
        "left": report.left,
        "gpu_seconds_per_problem": report.seconds_per_job,
        "busy_share": report.busy_share,
        "restored_rows": restored,
        "other_seconds": seconds,
    }


def main() -> None:
    """Restore, build, archive."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=Path, help="a folder of archives, or `none`")
    parser.add_argument("--shapes", default="h200")
    parser.add_argument("--effort", default="standard")
    parser.add_argument("--arch", default="sm90")
    parser.add_argument("--minutes", type=float, help="after that, no further problem is begun")
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--table", type=Path, help="where the table is kept meanwhile")
    options = parser.parse_args()
    table = options.table or Path(tempfile.mkdtemp(prefix="h200-")) / "all.db"
    begun = time.monotonic()
    folder = None if options.rows == Path("none") else options.rows or newest()
    restored = archive.restore(parts(folder) if folder else [], table)
    seconds = {"restore": time.monotonic() - begun}
    print(f"{restored:,} rows restored in {seconds['restore']:.0f} s", flush=True)
    request = BuildRequest(
        options.arch, shapes=options.shapes, effort=options.effort, out=table, gpus=options.gpus,
        minutes=options.minutes,
    )  # fmt: skip
    report = build(request, Lines())
    begun = time.monotonic()
    written = archive.write(table, options.out)
    seconds["archive"] = time.monotonic() - begun
    result = described(report, restored, seconds)
    (options.out / BUILD).write_text(json.dumps([*builds(folder), result], indent=1) + "\n")
    print(json.dumps(result), *(f"{path.name}: {path.stat().st_size:,} bytes" for path in written), sep="\n")


if __name__ == "__main__":
    run(main)
