"""`gemmdb coverage`: which GEMMs of a workload hit, and on which rung."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gemmdb.cli.options import JsonFlag


def coverage(
    workload: Annotated[Path, typer.Argument(metavar="WORKLOAD", help="What `gemmdb record` wrote.")],
    json: JsonFlag = False,
) -> None:
    """Say how much of a recorded workload the tables answer.

    Hits are counted per rung, misses are ranked by their share of the time. GEMMs that gemmdb does not steer (bmm,
    scaled_mm, convolutions) are named and counted.

    \b
    Examples:
      gemmdb coverage workload.jsonl
      gemmdb coverage workload.jsonl --json

    \b
    Exit codes: 0 done, also when there are misses; 2 bad usage or bad input.
    """
