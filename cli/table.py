"""Tables on stdout: aligned; on a terminal also coloured, with bars, and as wide as that at most."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gemmdb.cli import terminal
from gemmdb.cli.output import one_line, say

GAP = "  "
BAR = 10
"""The columns of the longest bar."""
FLOOR = 16
"""A column is usually not made narrower than this."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column and its heading. `right`: its cells are aligned on the right. `cut`: a cell that is too wide loses its
    beginning, as the path of a file should; else it is broken into lines. `drop`: what does not fit into a terminal is
    left out, the largest number first; 0 stays. `rigid`: never narrower than its widest cell; `floor`: never narrower
    than that."""

    heading: str
    right: bool = False
    cut: bool = False
    drop: int = 0
    rigid: bool = False
    floor: int = FLOOR


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
    columns, body = _drawn(columns, [[_cell(one) for one in row] for row in rows], bars)
    places = list(range(len(columns)))
    if width is not None:
        filled = [place for place in places if not body or any(row[place].text for row in body)]
        places = _fitting(columns, body, filled or places[:1], width)
    kept = [columns[place] for place in places]
    table = [[row[place] for place in places] for row in body]
    widths = _widths(kept, table, width)
    head = [Cell(column.heading, "bold") for column in kept]
    return [line for row in (head, *table) for line in _lines(kept, row, widths, colours)]


def _cell(given: str | Cell) -> Cell:
    cell = given if isinstance(given, Cell) else Cell(given)
    return replace(cell, text=one_line(cell.text))


def _drawn(columns: Sequence[Column], rows: list[list[Cell]], bars: bool) -> tuple[list[Column], list[list[Cell]]]:
    """Columns and cells with the bars as a part of the text: numbers of the same width, then bars, from the left."""
    columns = list(columns)
    for place, column in enumerate(columns):
        if not bars or not any(row[place].share is not None for row in rows):
            continue
        widest = max(terminal.cells(row[place].text) for row in rows)
        columns[place] = replace(column, right=False)
        for row in rows:
            cell = row[place]
            row[place] = replace(cell, text=f"{cell.text:>{widest}} {terminal.bar(cell.share or 0.0, BAR)}".rstrip())
    return columns, rows


def _natural(column: Column, place: int, rows: Sequence[Sequence[Cell]]) -> int:
    return max(map(terminal.cells, (column.heading, *(row[place].text for row in rows))))


def _least(column: Column, natural: int) -> int:
    return natural if column.rigid else min(natural, column.floor)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _fitting(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], places: list[int], width: int) -> list[int]:
    """The places of the columns that fit into `width`."""
    while True:
        least = [_least(columns[place], _natural(columns[place], place, rows)) for place in places]
        droppable = [place for place in places if columns[place].drop]
        if _total(least) <= width or not droppable or len(places) == 1:
            return places
        places = [one for one in places if one != max(droppable, key=lambda place: columns[place].drop)]


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int | None) -> list[int]:
    """The width of each column: natural, but the widest ones give way where that is too much."""
    widths = [_natural(column, place, rows) for place, column in enumerate(columns)]
    least = [_least(column, natural) for column, natural in zip(columns, widths, strict=True)]
    while width is not None and _total(widths) > width:
        spare = [place for place in range(len(widths)) if widths[place] > least[place]]
        if not spare:
            break
        widths[max(spare, key=lambda place: widths[place])] -= 1
    return widths


def _lines(columns: Sequence[Column], row: Sequence[Cell], widths: Sequence[int], colours: bool) -> list[str]:
    """A row in as many lines as its tallest cell has."""
    pieces = [
        [terminal.cut_left(cell.text, width)] if column.cut else terminal.wrapped(cell.text, width)
        for column, cell, width in zip(columns, row, widths, strict=True)
    ]
    height, last = max(map(len, pieces)), len(columns) - 1
    lines = []
    for level in range(height):
        parts = []
        for place, (column, cell, width) in enumerate(zip(columns, row, widths, strict=True)):
            text = pieces[place][level] if level < len(pieces[place]) else ""
            blank = " " * (width - terminal.cells(text))
            shown = terminal.painted(text, cell.style, colours)
            parts.append(blank + shown if column.right else shown if place == last else shown + blank)
        lines.append(GAP.join(parts).rstrip())
    return lines
