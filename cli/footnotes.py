"""Reasons that many rows of a table share: on a terminal a number in the row, and the reason once, below the table."""

from __future__ import annotations

from gemmdb.cli import terminal
from gemmdb.cli.output import say_hanging

SHORT = 20
"""The most characters of a reason that stands in its row."""


class Footnotes:
    """The reasons of one table. `whole`: they stand in their rows in full, as they do off a terminal, where each row
    must say all by itself."""

    def __init__(self, whole: bool = False) -> None:
        self._whole = whole or not terminal.is_terminal()
        self._numbers: dict[str, int] = {}

    def mark(self, reason: str) -> str:
        """What stands in the row: the reason, or its number."""
        if self._whole or len(reason) <= SHORT:
            return reason
        return f"({self._numbers.setdefault(reason, len(self._numbers) + 1)})"

    def say(self) -> None:
        """Print the reasons that have a number. The table must be printed before."""
        for reason, number in self._numbers.items():
            say_hanging(f"({number})", reason, "dim")
