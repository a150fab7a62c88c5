"""What the commands print with: answers go to stdout, everything else to stderr, one line each."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

UNSET_WIDTH = 1000
"""Columns of a table that is not printed to a terminal: wide enough that no path or kernel name is ever folded."""


def say(text: str = "") -> None:
    """One line of the answer, on stdout."""
    print(text)


def note(text: str) -> None:
    """One line about the answer, on stderr."""
    print(f"gemmdb: {one_line(text)}", file=sys.stderr, flush=True)


def one_line(text: str) -> str:
    """`text` on a single line, without characters that would steer a terminal."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def say_json(document: Any) -> None:
    """`document` as one JSON document on stdout; a number that JSON does not have (NaN, infinity) becomes null."""
    print(json.dumps(finite(document), indent=2, allow_nan=False))


def finite(value: Any) -> Any:
    """`value` with mappings as dicts, sequences as lists, and null in place of NaN and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [finite(inner) for inner in value]
    return value if value is None or isinstance(value, str | int) else str(value)


def say_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Name and value, one pair per line, the values aligned."""
    pairs = list(facts)
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        say(f"{name:<{width}}  {one_line(value)}")


def evidence_facts(evidence: Mapping[str, Any], but: Iterable[str] = ()) -> Iterator[tuple[str, str]]:
    """JSON-ready evidence as facts for people, without the names in `but`; a list of objects is a line for each."""
    for name, value in evidence.items():
        if name in set(but):
            continue
        if isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
            yield from ((name if place == 0 else "", _text(item)) for place, item in enumerate(value))
        else:
            yield name, _text(value).removeprefix(f"{name} ")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_text(inner)}" for name, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return str(value)


def say_table(headings: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
    """A table on stdout; the columns named in `right` are right-aligned. Folded to the width of a terminal only."""
    # Rich takes 40 ms to import, which a lookup need not pay.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    console = Console(soft_wrap=False, width=None if sys.stdout.isatty() else UNSET_WIDTH)
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        say(line.rstrip())


def microseconds(value: float) -> str:
    """A time in the unit that reads best: `8.31 us`, `1.25 ms`, `2.40 s`."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value:.2f} us"


def count(number: int, noun: str) -> str:
    """`1 problem`, `1,200 problems`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
