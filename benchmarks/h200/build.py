"""Build the rows of the shipped H200 table on all GPUs of the host, from where the last build stopped.

    python -m benchmarks.h200 build --out OUT [--rows FOLDER] [--shapes h200] [--effort standard] [--minutes 8]
        [--deny cutlass]

FOLDER holds the archives of an earlier build (default: the newest of benchmarks/results/h200). Their rows go into the
table first and are not measured again. OUT receives archives of all rows, old and new, and `build.json`, which tells
what this build and those before it did and cost. `python -m tools.release ship` makes the shipped table from a copy of
OUT.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.h200.results import BUILD, archives, builds, described, newest
from gemmdb.generators.build.build import BuildRequest, build
from gemmdb.generators.files import archive
from gemmdb.generators.progress import State

EVERY_S = 15.0
"""Seconds between two lines of progress."""


@dataclass
class Lines:
    """Prints the progress of a build."""

    said: float = 0.0

    def update(self, state: State) -> None:
        """Print a line, unless the last one is less than EVERY_S old."""
        if time.monotonic() - self.said >= EVERY_S or state.phase == "finished":
            self.said = time.monotonic()
            current = state.current.head if state.current else ""
            print(f"{state.done} of {state.total} ({state.before} before), {state.phase} {current}", flush=True)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--out", type=Path, required=True, help="the folder for the archives and build.json")
    parser.add_argument("--rows", type=Path, help="a folder of archives, or `none`; default: the newest results")
    parser.add_argument("--shapes", default="h200", help="a preset, a workload or a file of shapes")
    parser.add_argument("--effort", default="standard", help="quick, standard, full or lean")
    parser.add_argument("--arch", default="sm90", help="the arch to build for")
    parser.add_argument("--minutes", type=float, help="begin no further problem after that time")
    parser.add_argument("--deny", default="", help="do not try candidates whose text matches")
    parser.add_argument("--gpus", type=int, help="number of GPUs; default: all of the host")
    parser.add_argument("--table", type=Path, help="the file that holds the table meanwhile; default: a temporary one")


def main(options: argparse.Namespace) -> None:
    """Restore, build, archive."""
    table = options.table or Path(tempfile.mkdtemp(prefix="h200-")) / "all.db"
    begun = time.monotonic()
    folder = None if options.rows == Path("none") else options.rows or newest()
    restored = archive.restore(archives(folder) if folder else [], table)
    seconds = {"restore": time.monotonic() - begun}
    print(f"{restored:,} rows restored in {seconds['restore']:.0f} s", flush=True)
    request = BuildRequest(
        arch=options.arch, shapes=options.shapes, effort=options.effort, out=table, gpus=options.gpus,
        minutes=options.minutes, deny=options.deny,
    )  # fmt: skip
    report = build(request, Lines())
    begun = time.monotonic()
    written = archive.write(table, options.out)
    seconds["archive"] = time.monotonic() - begun
    result = {**described(report), "device": report.device.text, "left": report.left, "restored_rows": restored,
              "other_seconds": seconds}  # fmt: skip
    (options.out / BUILD).write_text(json.dumps([*builds(folder), result], indent=1) + "\n")
    print(json.dumps(result), *(f"{path.name}: {path.stat().st_size:,} bytes" for path in written), sep="\n")
