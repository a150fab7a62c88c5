"""`gemmdb diff`: how two tables differ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gemmdb.cli.options import JsonFlag


def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="A table.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another.")],
    json: JsonFlag = False,
) -> None:
    """Compare two tables: their rows, and their verdicts.

    \b
    Examples:
      gemmdb diff monday.db tuesday.db
      gemmdb diff monday.db tuesday.db --json

    \b
    Exit codes: 0 the same, 1 they differ, 2 bad usage or bad input.
    """
