"""Printing for all commands: answers go to stdout, everything else goes to stderr, one line each."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gemmdb.cli import terminal

JSON_VERSION = 1
"""Of all schemas in docs/schemas. New fields leave it as it is; a field that goes or changes its meaning raises it."""
SHORT_REASON = 20
"""The most characters of a reason that stands in its row of a table."""


def say(text: str = "") -> None:
    """One line of the answer, on stdout."""
    print(text)


def note(text: str) -> None:
    """One line about the answer, on stderr."""
    print(f"gemmdb: {one_line(text)}", file=sys.stderr, flush=True)


def one_line(text: str) -> str:
    """`text` on a single line, without terminal control characters."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def say_json(schema: str, document: Mapping[str, Any]) -> None:
    """Print `document` as one JSON object on stdout, after the name of its schema in docs/schemas and the version of
    that. NaN and infinity become null."""
    print(json.dumps({"schema": schema, "version": JSON_VERSION, **finite(document)}, indent=2, allow_nan=False))


def finite(value: Any) -> Any:
    """`value` with mappings as dicts, sequences as lists, and None instead of NaN and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [finite(inner) for inner in value]
    return value if value is None or isinstance(value, str | int) else str(value)


def say_facts(facts: Iterable[tuple[str, ...]], hang: bool = False) -> None:
    """Print pairs of name and value, one pair per line, with the values aligned; a third text is the value's style.
    `hang`: on a terminal, a long value continues below itself; otherwise it is one line that can be copied."""
    lines = list(facts)
    width = max((len(name) for name, *_ in lines), default=0)
    for name, value, *style in lines:
        say_hanging(f"{name:<{width}} ", one_line(value), "bold", style[0] if style else "", hang)


def say_hanging(head: str, text: str, head_style: str = "", style: str = "", hang: bool = True) -> None:
    """Print `head` and then `text`, each in a style. `hang`: on a terminal, what does not fit stands below the text."""
    most, indent = terminal.width() if hang else None, len(head) + 1
    first, *rest = [text] if most is None else terminal.wrapped(text, max(most - indent, 20))
    say(f"{terminal.painted(head, head_style)} {terminal.painted(first, style)}")
    for line in rest:
        say(f"{'':<{indent}}{terminal.painted(line, style)}")


def say_prose(text: str) -> None:
    """Print a sentence, broken between words on a terminal."""
    most = terminal.width()
    for line in [text] if most is None else terminal.wrapped(text, most):
        say(line)


class Footnotes:
    """Reasons that many rows of a table share: on a terminal a row has a number, and the reason stands once below the
    table. `whole`: rows have the full reasons, as they do off a terminal, where each row must be complete."""

    def __init__(self, whole: bool = False) -> None:
        self._whole = whole or not terminal.is_terminal()
        self._numbers: dict[str, int] = {}

    def mark(self, reason: str) -> str:
        """What stands in the row: the reason, or its number."""
        if self._whole or len(reason) <= SHORT_REASON:
            return reason
        return f"({self._numbers.setdefault(reason, len(self._numbers) + 1)})"

    def say(self) -> None:
        """Print the reasons that have a number. The table must be printed before."""
        for reason, number in self._numbers.items():
            say_hanging(f"({number})", reason, "dim")


def microseconds(value: float) -> str:
    """A time in a readable unit: `8.31 us`, `1.25 ms`, `2.40 s`."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value:.2f} us"


def places(origins: Sequence[object]) -> str:
    """Where a GEMM comes from in the user's code: the first place, and how many more there are."""
    more = f" and {len(origins) - 1} more" if len(origins) > 1 else ""
    return f"{origins[0]}{more}" if origins else ""


def count(number: int, noun: str, nouns: str = "") -> str:
    """`1 problem`, `1,200 problems`. `nouns`: the plural, if it is not the noun with an s."""
    return f"{number:,} {noun if number == 1 else nouns or f'{noun}s'}"
