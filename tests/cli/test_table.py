"""Tables on stdout: aligned, within the width of a terminal, coloured there and nowhere else."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmdb.cli import terminal
from gemmdb.cli.output import MIN_COLUMN_WIDTH, Cell, Column, lay_out

ANSI = re.compile(r"\x1b\[\d+m")
TEXT = st.text(st.characters(categories=["L", "N", "P", "Zs"]), max_size=60)


def plain(lines: list[str]) -> list[str]:
    """The lines without colours."""
    return [ANSI.sub("", line) for line in lines]


@given(st.lists(st.tuples(TEXT, TEXT, TEXT), max_size=5), st.integers(3 * MIN_COLUMN_WIDTH + 4, 200))
def test_a_table_fits_into_its_width_and_keeps_every_character(rows, width):
    lines = lay_out([Column("a"), Column("b"), Column("c")], rows, width)
    assert all(terminal.cells(line) <= width for line in lines)
    given_ = sorted("".join("".join(cell.split()) for row in rows for cell in row if cell.isprintable()))
    found = "".join("".join(line.split()) for line in lines[1:])
    assert not [one for one in set(given_) if found.count(one) < given_.count(one)]


@given(st.lists(st.tuples(TEXT, TEXT), max_size=5))
def test_a_file_has_one_line_per_row(rows):
    columns = [Column("a", drop=1), Column("b", cut=True)]
    assert len(lay_out(columns, rows, None)) == 1 + len(rows)


@given(TEXT, st.integers(2, 40))
def test_wrapped_lines_are_the_text(text, most):
    lines = terminal.wrapped(text, most)
    assert all(terminal.cells(line) <= most for line in lines)
    assert "".join(" ".join(lines).split()) == "".join(text.split())


@given(TEXT, st.integers(2, 40))
def test_the_end_of_a_text_is_kept(text, most):
    cut = terminal.cut_left(text, most)
    assert terminal.cells(cut) <= most
    assert text.endswith(cut.removeprefix("…"))


def test_columns_are_left_out_the_largest_number_first():
    columns = [Column("a", rigid=True), Column("b", rigid=True, drop=1), Column("c", rigid=True, drop=2)]
    rows = [("a" * 10, "b" * 10, "c" * 10)]
    assert [len(lay_out(columns, rows, width)[0].split()) for width in (34, 33, 22, 21)] == [3, 2, 2, 1]
    assert len(lay_out(columns, rows, None)[0].split()) == 3


def test_a_column_without_text_is_left_out_of_a_terminal_alone():
    columns, rows = [Column("a"), Column("why")], [("1", ""), ("2", "")]
    assert lay_out(columns, rows, 80)[0] == "a"
    assert lay_out(columns, rows, None)[0] == "a  why"


def test_a_share_is_a_bar_on_a_terminal_alone():
    columns, rows = [Column("share", right=True)], [(Cell("50.0%", share=0.5),), (Cell("5.0%", share=0.05),)]
    assert lay_out(columns, rows, None) == ["share", "50.0%", " 5.0%"]
    assert [len(line.split()) for line in lay_out(columns, rows, 80, bars=True)] == [1, 2, 2]


def test_colours_change_no_column():
    columns = [Column("a", right=True), Column("b")]
    rows = [(Cell("1", "green"), Cell("long words " * 9, "red")), ("22", "x")]
    coloured = lay_out(columns, rows, 40, colours=True)
    assert plain(coloured) == lay_out(columns, rows, 40)
    assert coloured != plain(coloured)


@pytest.mark.parametrize(("share", "text"), [(0.0, ""), (0.001, "▏"), (0.5, "█████"), (1.0, "█" * 10), (3.0, "█" * 10)])
def test_bars(share, text):
    assert terminal.bar(share, 10, blocks=True) == text
    assert set(terminal.bar(share, 10, blocks=False)) <= {"#"}
