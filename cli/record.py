"""`gemmdb record`: writes down which GEMMs a program compiles, and how often."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from gemmdb.cli.output import count, note
from gemmdb.errors import InputError
from gemmdb.settings import Settings
from gemmdb.tune.running import run
from gemmdb.workload import entries


def record(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="The program and its arguments.")],
    out: Annotated[Path, typer.Option(help="The workload file. Recorded problems are added to it.")] = Path(
        "workload.jsonl"
    ),
) -> None:
    """Record the GEMMs that a program compiles.

    Every Python process that COMMAND starts is recorded. The program needs no change. A line of the workload holds a
    problem and how often a process met it, or the name of a GEMM that gemmdb does not steer. Several lines may hold the
    same problem: `gemmdb build --shapes` and `gemmdb coverage`, which read the file, add them up.

    \b
    Examples:
      gemmdb record -- python train.py
      gemmdb record --out decode.jsonl -- python -m serve --batch 8

    \b
    Exit codes: that of COMMAND (128 + n when signal n ended it); 2 when it cannot be started.
    """
    if out.is_dir() or not os.access(out.absolute().parent, os.W_OK):
        raise InputError(f"cannot write {out}: it is a directory, or its folder is missing or read-only")
    before, _ = _recorded(out)
    recorded = run(command, out)
    after, uncovered = _recorded(out)
    obstacle = "GEMMDB_DISABLE is set" if Settings.read().disabled else recorded.obstacle
    if recorded.exit_code:
        note(f"COMMAND ended with exit code {recorded.exit_code}")
    if after == before == 0 and not uncovered:
        note(f"nothing was recorded: {obstacle}")
    else:
        new = f", {after - before} of them new" if before else ""
        named = f"; not steered: {', '.join(uncovered)}" if uncovered else ""
        note(f"{count(after, 'problem')} in {out}{new}{named}; next: gemmdb build --arch native --shapes {out}")
    raise typer.Exit(recorded.exit_code)


def _recorded(path: Path) -> tuple[int, list[str]]:
    """The number of problems in a workload, and the names of the GEMMs in it that gemmdb does not steer. A missing file
    counts as empty. Raises InputError for a file that is not a workload."""
    if not path.exists():
        return 0, []
    found = entries.read(path)
    return len({entry.problem for entry in found.entries}), sorted(found.uncovered)
