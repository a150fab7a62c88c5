"""`gemmdb record`: which GEMMs does a program compile, and how often."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from gemmdb.cli.output import count, note
from gemmdb.cli.recording import run
from gemmdb.errors import InputError
from gemmdb.settings import Settings
from gemmdb.workload import entries


def record(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="The program and its arguments.")],
    out: Annotated[Path, typer.Option(help="The workload; what is recorded is added to it.")] = Path("workload.jsonl"),
) -> None:
    """Write down the GEMMs that a program compiles.

    Every Python process that COMMAND starts is recorded, and the program itself is not changed. Each line of the
    workload is one problem with how often it occurs. `gemmdb build --shapes` and `gemmdb coverage` read it.

    \b
    Examples:
      gemmdb record -- python train.py
      gemmdb record --out decode.jsonl -- python -m serve --batch 8

    \b
    Exit codes: that of COMMAND (128 + n when signal n ended it); 2 when it cannot be started.
    """
    if out.is_dir() or not os.access(out.absolute().parent, os.W_OK):
        raise InputError(f"cannot write {out}: it is a directory, or is in one that is missing or read-only")
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
    """How many problems a workload holds, and the names of GEMMs in it that gemmdb does not steer; nothing when there
    is no file yet. Raises InputError when it is no workload."""
    if not path.exists():
        return 0, []
    found = entries.read(path)
    return len({entry.problem for entry in found.entries}), sorted(found.uncovered)
