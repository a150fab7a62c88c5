"""Content of an exchanged file, and counts of what an export or import carried over or skipped, by reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gemmdb.table.measurement import Measurement

MAX_EXAMPLES = 3
"""Number of examples listed per reason."""


@dataclass(frozen=True)
class Content:
    """Content of a file: rows, and runs in the form of `Table.provenance`. Rows are read lazily."""

    rows: Iterable[Measurement]
    runs: list[dict[str, Any]]


@dataclass(frozen=True)
class Left:
    """Items skipped for one reason: how many, and the names of the first MAX_EXAMPLES."""

    reason: str
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Exchanged:
    """Result of an export or import. `what`: the unit counted, in the singular. `carried`: number of these units in
    `out`. `total`: number of measurements in the table after an import, None after an export."""

    source: str
    out: Path
    format: str
    what: str
    carried: int
    left: tuple[Left, ...] = ()
    total: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the output of `gemmdb export --json` and `gemmdb import --json`."""
        found = {**asdict(self), "out": str(self.out)}
        return {name: value for name, value in found.items() if value is not None}


@dataclass
class Tally:
    """Count skipped items by reason."""

    _found: dict[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)

    def leave(self, reason: str, name: str, count: int = 1) -> None:
        """Record that `name` is skipped, or `count` items that include it."""
        before, examples = self._found.get(reason, (0, ()))
        if len(examples) < MAX_EXAMPLES and name not in examples:
            examples = (*examples, name)
        self._found[reason] = (before + count, examples)

    @property
    def left(self) -> tuple[Left, ...]:
        """Return all skipped items, the most frequent reason first."""
        found = (Left(reason, count, examples) for reason, (count, examples) in self._found.items())
        return tuple(sorted(found, key=lambda one: (-one.count, one.reason)))
