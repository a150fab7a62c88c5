"""Output of all commands: results go to stdout, everything else goes to stderr, one line each. Tables are aligned; on a
terminal they have colours and bars and fit its width."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gemmdb.cli import terminal

JSON_VERSION = 1
"""Version of all schemas in docs/schemas. Adding a field keeps it; removing or redefining one raises it."""
SHORT_REASON = 20
"""Maximum characters of a reason that is printed in its table row."""
GAP = "  "
BAR_WIDTH = 10
"""Width of the longest bar."""
MIN_COLUMN_WIDTH = 16
"""Default minimum width of a column."""


def say(text: str = "") -> None:
    """Print one line of the result on stdout."""
    print(text)


def note(text: str) -> None:
    """Print one line about the result on stderr."""
    print(f"gemmdb: {one_line(text)}", file=sys.stderr, flush=True)


def one_line(text: str) -> str:
    """Return `text` on a single line, without terminal control characters."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def say_json(schema: str, document: Mapping[str, Any]) -> None:
    """Print `document` as one JSON object on stdout, preceded by its schema's name in docs/schemas and version. NaN and
    infinity become null."""
    print(json.dumps({"schema": schema, "version": JSON_VERSION, **finite(document)}, indent=2, allow_nan=False))


def finite(value: Any) -> Any:
    """Return `value` with mappings as dicts, sequences as lists, and None for NaN and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [finite(inner) for inner in value]
    return value if value is None or isinstance(value, str | int) else str(value)


def say_facts(facts: Iterable[tuple[str, ...]], hang: bool = False) -> None:
    """Print name-value pairs, one per line, with aligned values; an optional third text is the value's style. `hang`:
    on a terminal, wrap long values with a hanging indent; otherwise each is one line that can be copied."""
    lines = list(facts)
    width = max((len(name) for name, *_ in lines), default=0)
    for name, value, *style in lines:
        say_hanging(f"{name:<{width}} ", one_line(value), "bold", style[0] if style else "", hang)


def say_hanging(head: str, text: str, head_style: str = "", style: str = "", hang: bool = True) -> None:
    """Print `head` and then `text`, each in a style. `hang`: on a terminal, wrap with a hanging indent."""
    most, indent = terminal.width() if hang else None, len(head) + 1
    first, *rest = [text] if most is None else terminal.wrapped(text, max(most - indent, 20))
    say(f"{terminal.painted(head, head_style)} {terminal.painted(first, style)}")
    for line in rest:
        say(f"{'':<{indent}}{terminal.painted(line, style)}")


def say_prose(text: str) -> None:
    """Print a sentence, wrapped between words on a terminal."""
    most = terminal.width()
    for line in [text] if most is None else terminal.wrapped(text, most):
        say(line)


class Footnotes:
    """Reasons shared by many rows of a table: on a terminal, rows have a number, and each reason is printed once below
    the table. `whole`: rows have full reasons, as when stdout is not a terminal, where each row must be complete."""

    def __init__(self, whole: bool = False) -> None:
        self._whole = whole or not terminal.is_terminal()
        self._numbers: dict[str, int] = {}

    def mark(self, reason: str) -> str:
        """Return the text for the row: the reason, or its number."""
        if self._whole or len(reason) <= SHORT_REASON:
            return reason
        return f"({self._numbers.setdefault(reason, len(self._numbers) + 1)})"

    def say(self) -> None:
        """Print the numbered reasons. Call it after printing the table."""
        for reason, number in self._numbers.items():
            say_hanging(f"({number})", reason, "dim")


def microseconds(value: float) -> str:
    """Format a time in a readable unit: `8.31 us`, `1.25 ms`, `2.40 s`."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value:.2f} us"


def places(origins: Sequence[object]) -> str:
    """Format a GEMM's locations in the user's code: the first one, and how many more there are."""
    more = f" and {len(origins) - 1} more" if len(origins) > 1 else ""
    return f"{origins[0]}{more}" if origins else ""


def count(number: int, noun: str, nouns: str = "") -> str:
    """`1 problem`, `1,200 problems`. `nouns`: the plural, if irregular."""
    return f"{number:,} {noun if number == 1 else nouns or f'{noun}s'}"


@dataclass(frozen=True, slots=True)
class Column:
    """A column and its heading. `right`: right-aligned. `cut`: truncate wide cells on the left, as for file paths;
    otherwise they are wrapped. `drop`: priority for dropping columns that do not fit a terminal, largest first; 0 is
    never dropped. `rigid`: never narrower than its widest cell; `floor`: the minimum width otherwise."""

    heading: str
    right: bool = False
    cut: bool = False
    drop: int = 0
    rigid: bool = False
    floor: int = MIN_COLUMN_WIDTH


@dataclass(frozen=True, slots=True)
class Cell:
    """A text with a style of `terminal.STYLES`. `share`, from 0 to 1, is drawn as a bar after the text."""

    text: str
    style: str = ""
    share: float | None = None


Row = Sequence["str | Cell"]


def say_table(
    headings: Sequence[str | Column], rows: Iterable[Row], right: Sequence[str] = (), whole: bool = False
) -> None:
    """Print a table. The columns named in `right` are right-aligned. If stdout is not a terminal, nothing is dropped,
    wrapped, drawn or coloured, and each row is one line of any length. `whole`: the same on a terminal, but with
    colours."""
    columns = [one if isinstance(one, Column) else Column(one, one in right, rigid=one in right) for one in headings]
    width = None if whole else terminal.width()
    colours, bars = terminal.has_colours(), terminal.is_terminal()
    for line in lay_out(columns, rows, width, colours, bars):
        say(line)


def lay_out(
    columns: Sequence[Column], rows: Iterable[Row], width: int | None, colours: bool = False, bars: bool = False
) -> list[str]:
    """Return the lines of a table, at most `width` columns wide if its rigid columns leave enough room; None: any
    width. With a `width`, empty columns are left out."""
    cells = [[one if isinstance(one, Cell) else Cell(one) for one in row] for row in rows]
    strips = [_Strip(column, [row[place] for row in cells], bars) for place, column in enumerate(columns)]
    if width is not None:
        strips = [strip for strip in strips if not cells or any(cell.text for cell in strip.cells[1:])] or strips[:1]
        _fit(strips, width)
    return [line for place in range(len(cells) + 1) for line in _lines(strips, place, colours)]


class _Strip:
    """A rendered column with its heading and cells. `width`: its current width; `least`: its minimum width."""

    def __init__(self, column: Column, cells: Sequence[Cell], bars: bool) -> None:
        cells = [replace(cell, text=one_line(cell.text)) for cell in cells]
        if bars and any(cell.share is not None for cell in cells):
            # Numbers of the same width, then bars, from the left.
            column, widest = replace(column, right=False), max(terminal.cells(cell.text) for cell in cells)
            drawn = (f"{cell.text:>{widest}} {terminal.bar(cell.share or 0.0, BAR_WIDTH)}".rstrip() for cell in cells)
            cells = [replace(cell, text=text) for cell, text in zip(cells, drawn, strict=True)]
        self.column, self.cells = column, [Cell(column.heading, "bold"), *cells]
        self.width = max(terminal.cells(cell.text) for cell in self.cells)
        self.least = self.width if column.rigid else min(self.width, column.floor)


def _fit(strips: list[_Strip], width: int) -> None:
    """Drop columns, then narrow the widest ones, until the table fits into `width` or nothing more can shrink."""
    while len(strips) > 1 and sum(one.least + len(GAP) for one in strips) - len(GAP) > width:
        droppable = [one for one in strips if one.column.drop]
        if not droppable:
            break
        strips.remove(max(droppable, key=lambda one: one.column.drop))
    while sum(one.width + len(GAP) for one in strips) - len(GAP) > width:
        spare = [one for one in strips if one.width > one.least]
        if not spare:
            break
        max(spare, key=lambda one: one.width).width -= 1


def _lines(strips: Sequence[_Strip], place: int, colours: bool) -> Iterator[str]:
    """Yield the lines of one row, as many as its tallest cell has."""
    pieces = [
        [terminal.cut_left(one.cells[place].text, one.width)] if one.column.cut
        else terminal.wrapped(one.cells[place].text, one.width)
        for one in strips
    ]  # fmt: skip
    for level in range(max(map(len, pieces))):
        parts = []
        for one, texts in zip(strips, pieces, strict=True):
            text = texts[level] if level < len(texts) else ""
            blank = " " * (one.width - terminal.cells(text))
            shown = terminal.painted(text, one.cells[place].style, colours)
            parts.append(blank + shown if one.column.right else shown if one is strips[-1] else shown + blank)
        yield GAP.join(parts).rstrip()
