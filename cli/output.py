"""Printing for all commands: answers go to stdout, everything else goes to stderr, one line each."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gemmdb.cli import terminal

if TYPE_CHECKING:
    from gemmdb.table.stats import Gain

FACT_BAR = 24
"""The columns of the longest bar behind a fact."""
JSON_VERSION = 1
"""Of all schemas in docs/schemas. New fields leave it as it is; a field that goes or changes its meaning raises it."""


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
    `hang`: on a terminal, a long value goes on in further lines below itself; without it the terminal breaks the line,
    and it can be copied as one."""
    lines = list(facts)
    width = max((len(name) for name, *_ in lines), default=0)
    for name, value, *style in lines:
        say_hanging(f"{name:<{width}} ", one_line(value), "bold", style[0] if style else "", hang)


def say_hanging(head: str, text: str, head_style: str = "", style: str = "", hang: bool = True) -> None:
    """Print `head`, and `text` after it, each in a style. `hang`: on a terminal, what does not fit stands below the
    text."""
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


def gain_style(low: float, high: float | None = None) -> str:
    """The style of a gain between `low` and `high`: one that is certain is green, a certain loss is red."""
    return "green" if low > 1 else "red" if (low if high is None else high) < 1 else ""


def with_bar(text: str, part: float, whole: float) -> str:
    """`text`, and on a terminal a bar as long as `part` of `whole`."""
    if not terminal.is_terminal() or whole <= 0:
        return text
    return f"{text}  {terminal.bar(part / whole, FACT_BAR)}"


def places(origins: Sequence[object]) -> str:
    """Where a product comes from in the user's code: the first place, and how many more there are."""
    if not origins:
        return ""
    return f"{origins[0]}{f' and {len(origins) - 1} more' if len(origins) > 1 else ''}"


def count(number: int, noun: str, nouns: str = "") -> str:
    """`1 problem`, `1,200 problems`. `nouns`: the plural, if it is not the noun with an s."""
    return f"{number:,} {noun if number == 1 else nouns or f'{noun}s'}"
