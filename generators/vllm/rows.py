"""Measured rows of vLLM's kernels, one JSON object per line beside the file that they decide.

The file of configs has no room for times, so the rows are the evidence for it: what was timed, how, with which
versions, and what failed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gemmdb.errors import InputError
from gemmdb.files import append_lines, read_bounded
from gemmdb.generators.vllm_files import Tile
from gemmdb.table.measurement import Status, Times, one_line

MIN_GAIN = 0.02
"""vLLM's present config stays unless another is faster by this share, as in gemmdb's tables."""
MAX_BYTES = 2**28


@dataclass(frozen=True)
class Row:
    """One config, timed or failed. `m`: the tokens, or rows of a linear. `current`: vLLM's present choice, which the
    others were timed in turn with: `times.aten_us` is its time. `error`: the largest error of a row of the result, see
    `operands.error`."""

    m: int
    tile: Tile
    status: Status
    times: Times | None = None
    error: float | None = None
    current: bool = False
    detail: str = ""

    @property
    def gains(self) -> bool:
        """Whether it is clearly faster than vLLM's present config."""
        times = self.times
        return times is not None and times.ratio < 1 - MIN_GAIN and times.high_us < times.aten_us


@dataclass
class Record:
    """The file of rows of one layer with one set of versions. `layer`, `versions`: JSON-ready, part of every row.
    `rows`: what it holds of them. Raises InputError for a file of other content."""

    path: Path
    layer: Mapping[str, Any]
    versions: Mapping[str, str]
    rows: list[Row] = field(init=False)

    def __post_init__(self) -> None:
        text = read_bounded(self.path, MAX_BYTES).decode("utf-8", "replace") if self.path.exists() else ""
        found = [self._row(line, f"{self.path}:{number}") for number, line in enumerate(text.splitlines(), 1)]
        self.rows = [row for row in found if row]

    def add(self, rows: Iterable[Row]) -> None:
        """Append rows; durable on return. Raises OSError."""
        new = list(rows)
        append_lines(self.path, [json.dumps(self._document(row)) for row in new])
        self.rows += new

    def _document(self, row: Row) -> dict[str, Any]:
        found = asdict(row) | {"tile": row.tile.values, "layer": self.layer, "versions": self.versions}
        return {
            name: value for name, value in found.items() if value is not None and value is not False and value != ""
        }

    def _row(self, line: str, where: str) -> Row | None:
        """Return the row in a line; None if it is of another layer or other versions."""
        try:
            part = json.loads(line)
            if part.pop("layer") != self.layer or part.pop("versions") != self.versions:
                return None
            tile, times = Tile.of(part.pop("tile")), part.pop("times", None)
            if not isinstance(tile, Tile) or type(part["m"]) is not int or part["m"] < 1:
                raise InputError("no M, or no config")
            return Row(tile=tile, status=Status(part.pop("status")), times=Times(**times) if times else None, **part)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            what = one_line(f"{type(error).__name__}: {error}")[:120]
            raise InputError(f"{where}: not a row of this command ({what}); delete the file to start over") from error


def picks(rows: Iterable[Row]) -> dict[int, Row]:
    """Return the row of the config for each M that was measured in full: the fastest if it is clearly faster than
    vLLM's present one, else that one."""
    full = [row for row in rows if row.status is Status.OK and row.times]
    found = {row.m: row for row in full if row.current}
    for row in sorted(full, key=lambda row: (-row.times.ratio if row.times else 0.0, str(row.tile))):
        if row.gains and row.m in found:
            found[row.m] = row  # The fastest comes last.
    return dict(sorted(found.items()))
