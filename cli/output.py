"""Printing for all commands: answers go to stdout, everything else goes to stderr, one line each. Tables are aligned,
and on a terminal coloured, with bars, and as wide as that at most."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gemmdb.cli import terminal

JSON_VERSION = 1
"""Of all schemas in docs/schemas. New fields leave it as it is; a field that goes or changes its meaning raises it."""
SHORT_REASON = 20
"""The most characters of a reason that stands in its row of a table."""
GAP = "  "
BAR_WIDTH = 10
"""The columns of the longest bar."""
MIN_COLUMN_WIDTH = 16
"""A column is usually not made narrower than this."""


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


@dataclass(frozen=True, slots=True)
class Column:
    """A column and its heading. `right`: its cells are aligned on the right. `cut`: a cell that is too wide loses its
    beginning, as the path of a file should; else it is broken into lines. `drop`: columns that do not fit into a
    terminal are left out, the largest number first; 0 stays. `rigid`: never narrower than its widest cell; `floor`: the
    least width otherwise."""

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
    """Print a table. The columns named in `right` are right-aligned. Off a terminal nothing is left out, broken, drawn
    or coloured, and so with `whole` but for the colours: each row is one line, whatever its length."""
    columns = [one if isinstance(one, Column) else Column(one, one in right, rigid=one in right) for one in headings]
    width = None if whole else terminal.width()
    colours, bars = terminal.has_colours(), terminal.is_terminal()
    for line in lay_out(columns, rows, width, colours, bars):
        say(line)


def lay_out(
    columns: Sequence[Column], rows: Iterable[Row], width: int | None, colours: bool = False, bars: bool = False
) -> list[str]:
    """The lines of a table in at most `width` columns, if its rigid columns leave room for the others; None: in any.
    Where `width` is given, columns without any text are left out."""
    cells = [[one if isinstance(one, Cell) else Cell(one) for one in row] for row in rows]
    strips = [_Strip(column, [row[place] for row in cells], bars) for place, column in enumerate(columns)]
    if width is not None:
        strips = [strip for strip in strips if not cells or any(cell.text for cell in strip.cells[1:])] or strips[:1]
        _fit(strips, width)
    return [line for place in range(len(cells) + 1) for line in _lines(strips, place, colours)]


class _Strip:
    """A column with its heading and cells, drawn. `width`: what it takes of the terminal; `least`: what it may take."""

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
    """Drop columns, then narrow the widest ones, until the table fits into `width`, as far as they allow that."""
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
    """The row at a place in as many lines as its tallest cell has."""
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
