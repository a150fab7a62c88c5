"""Measured rows of vLLM's kernels, one JSON object per line beside the file that they decide.

The file of configs has no room for times, so the rows are the evidence for it: what was timed, how, with which
versions, and what failed.
"""

from __future__ import annotations

import json
from collections import defaultdict
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
    others were timed in turn with: `times.aten_us` is its time. `error`: the root mean square of the differences from
    the exact result, relative to that of the result."""

    m: int
    tile: Tile
    status: Status
    times: Times | None = None
    error: float | None = None
    current: bool = False
    detail: str = ""


@dataclass(frozen=True)
class Record:
    """The file of rows of one layer with one set of versions. `layer`, `versions`: JSON-ready, part of every row."""

    path: Path
    layer: Mapping[str, Any]
    versions: Mapping[str, str]
    _known: list[Row] = field(default_factory=list)

    def add(self, rows: Iterable[Row]) -> None:
        """Append rows; durable on return. Raises OSError."""
        new = list(rows)
        append_lines(self.path, [json.dumps(self._document(row)) for row in new])
        self._known.extend(new)

    def read(self) -> list[Row]:
        """Return the rows of this layer with these versions. Raises InputError for a file of other content."""
        if not self._known and self.path.exists():
            lines = read_bounded(self.path, MAX_BYTES).decode("utf-8", "replace").splitlines()
            for number, line in enumerate(lines, 1):
                row = self._row(line, f"{self.path}:{number}")
                self._known.extend([row] if row else [])
        return list(self._known)

    def _document(self, row: Row) -> dict[str, Any]:
        found = asdict(row) | {"tile": row.tile.values, "layer": dict(self.layer), "versions": dict(self.versions)}
        return {name: value for name, value in found.items() if value not in (None, "", False)}

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
            raise InputError(f"{where}: not a row of this tuning ({one_line(repr(error))[:120]})") from error


def picks(rows: Iterable[Row]) -> dict[int, Tile]:
    """Return the config for each M that was measured in full: the fastest if it is faster than vLLM's present one by
    more than MIN_GAIN and the noise, else that one."""
    by_m: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        if row.status is Status.OK and row.times:
            by_m[row.m].append(row)
    found = {}
    for m, timed in by_m.items():
        current = next((row for row in timed if row.current), None)
        if current is None:
            continue
        best = min(timed, key=lambda row: (row.times.ratio if row.times else 1.0, str(row.tile)))
        found[m] = best.tile if best.times and gains(best.times) else current.tile
    return found


def gains(times: Times) -> bool:
    """Whether a time is clearly below that of vLLM's present config."""
    return times.ratio < 1 - MIN_GAIN and times.high_us < times.aten_us
