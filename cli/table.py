"""Tables on stdout: aligned; on a terminal also coloured, with bars, and as wide as that at most."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
    beginning, as the path of a file should; else it is broken into lines. `drop`: columns that do not fit into a
    terminal are left out, the largest number first; 0 stays. `rigid`: never narrower than its widest cell; `floor`: the
    least width otherwise."""

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
            drawn = (f"{cell.text:>{widest}} {terminal.bar(cell.share or 0.0, BAR)}".rstrip() for cell in cells)
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
