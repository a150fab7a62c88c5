"""Which program a free place takes next, and which programs a file has."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.programs.program import Program


def already(rows: Sequence[Mapping[str, Any]], names: Sequence[str], cold: bool = False) -> set[str]:
    """The programs that a row has in all of these ways, none of which failed. A skipped program is none of them.
    `cold`: only rows with nothing but cold compiles count, else only the others."""
    return {row["program"] for row in rows if row.get("cold", False) == cold and _has(row, names)}


def _has(row: Mapping[str, Any], names: Sequence[str]) -> bool:
    found = row.get("ways", {})
    return "failure" not in row and all(name in found and "failure" not in found[name] for name in names)


def missing(
    programs: Sequence[Program], rows: Sequence[Mapping[str, Any]], names: Sequence[str], cold: bool = False
) -> list[Program]:
    """The programs that no row has in these ways, as `already` counts. Those that were tried before, and failed, come
    last."""
    done = already(rows, names, cold)
    tried = {row["program"] for row in rows if row.get("cold", False) == cold}
    left = [program for program in programs if program.name not in done]
    return sorted(left, key=lambda program: program.name in tried)


@dataclass
class Plan:
    """Programs to measure, in order. `tuned`: how many programs that tune while they compile run at once on a GPU; they
    need much memory, and take turns in timing anyway. Threads share it."""

    waiting: list[Program]
    tuned: int
    _running: Counter[str] = field(default_factory=Counter, repr=False)
    _changed: threading.Condition = field(default_factory=threading.Condition, repr=False)

    def take(self, gpu: str) -> Program | None:
        """The first program that may begin on this GPU now; None if none is left. Waits while all that are left are
        tuned, and as many as may be run there."""
        with self._changed:
            while self.waiting:
                may = (one for one in self.waiting if not one.tuned or self._running[gpu] < self.tuned)
                if program := next(may, None):
                    self.waiting.remove(program)
                    self._running[gpu] += program.tuned
                    return program
                self._changed.wait()
            self._changed.notify_all()
            return None

    def done(self, gpu: str, program: Program) -> None:
        """This program has ended on this GPU."""
        with self._changed:
            self._running[gpu] -= program.tuned
            self._changed.notify_all()

    def stop(self) -> None:
        """Begin no further program."""
        with self._changed:
            self.waiting.clear()
            self._changed.notify_all()
