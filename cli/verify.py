"""`gemmdb verify`: whether a table is what it says, and still true."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A table.")],
    remeasure: Annotated[int, typer.Option(metavar="N", min=0, help="Time N problems of it again, here.")] = 0,
) -> None:
    """Check a table; with --remeasure, time it again.

    Checked: the file's structure, that each row is well-formed and under its right key, that the digest is that of the
    rows and the verdicts are what the rows say. Timing again needs the device that the table is for.

    \b
    Examples:
      gemmdb verify mine.db
      gemmdb verify mine.db --remeasure 50

    \b
    Exit codes: 0 nothing found, 1 problems found, 2 bad usage or bad input.
    """
