"""What a file holds, and what an export or an import carried over and left, by reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gemmdb.table.measurement import Measurement

MAX_EXAMPLES = 3
"""Examples that are named for each reason."""


@dataclass(frozen=True)
class Content:
    """What a file holds: rows, and the runs in the form of `Table.provenance`. Rows are read while they are taken."""

    rows: Iterable[Measurement]
    runs: list[dict[str, Any]]


@dataclass(frozen=True)
class Left:
    """What was not carried over for one reason: how many, and the names of the first MAX_EXAMPLES of them."""

    reason: str
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Exchanged:
    """The result of an export or an import. `what`: what is counted, in the singular. `carried`: how many of these are
    in `out`. `total`: the measurements in a table after an import, None after an export."""

    source: str
    out: Path
    format: str
    what: str
    carried: int
    left: tuple[Left, ...] = ()
    total: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """What `gemmdb export --json` and `gemmdb import --json` print."""
        found = {**asdict(self), "out": str(self.out)}
        return {name: value for name, value in found.items() if value is not None}


@dataclass
class Tally:
    """Counts what is left, by reason."""

    _found: dict[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)

    def leave(self, reason: str, name: str, count: int = 1) -> None:
        """Note that `name` is not carried over, or `count` things of which it is one."""
        before, examples = self._found.get(reason, (0, ()))
        if len(examples) < MAX_EXAMPLES and name not in examples:
            examples = (*examples, name)
        self._found[reason] = (before + count, examples)

    @property
    def left(self) -> tuple[Left, ...]:
        """Everything that was left, the most frequent reason first."""
        found = (Left(reason, count, examples) for reason, (count, examples) in self._found.items())
        return tuple(sorted(found, key=lambda one: (-one.count, one.reason)))
