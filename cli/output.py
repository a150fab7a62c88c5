"""Printing for all commands: answers go to stdout, everything else goes to stderr, one line each."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gemmdb.table.stats import Gain

JSON_VERSION = 1
"""Of all schemas in docs/schemas. New fields leave it as it is; a field that goes or changes its meaning raises it."""
UNSET_WIDTH = 1000
"""Width of a table that is not printed to a terminal. It is large enough that no path or kernel name is folded."""


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


def say_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print pairs of name and value, one pair per line, with the values aligned."""
    pairs = list(facts)
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        say(f"{name:<{width}}  {one_line(value)}")


def evidence_facts(evidence: Mapping[str, Any], but: Iterable[str] = ()) -> Iterator[tuple[str, str]]:
    """JSON-ready evidence as pairs of name and value for people, without the names in `but`. Each object of a list gets
    its own line."""
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
    """Print a table on stdout. The columns named in `right` are right-aligned. Cells are folded only on a terminal."""
    # Imported here because rich takes 40 ms to import, too long for a lookup.
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
    """A time in a readable unit: `8.31 us`, `1.25 ms`, `2.40 s`."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value:.2f} us"


def gain_text(found: Gain) -> str:
    """A gain and its interval, where it has one."""
    if found.low == found.high:
        return f"{found.value:.2f}x"
    return f"{found.value:.2f}x, between {found.low:.2f}x and {found.high:.2f}x"


def places(origins: Sequence[object]) -> str:
    """Where a product comes from in the user's code: the first place, and how many more there are."""
    if not origins:
        return ""
    return f"{origins[0]}{f' and {len(origins) - 1} more' if len(origins) > 1 else ''}"


def count(number: int, noun: str) -> str:
    """`1 problem`, `1,200 problems`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
