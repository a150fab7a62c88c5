"""Reasons that rows share."""

from hypothesis import given
from hypothesis import strategies as st

from gemmdb.cli import footnotes, terminal
from gemmdb.cli.footnotes import Footnotes

LONG = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=footnotes.SHORT + 1, max_size=60)


@given(st.lists(LONG | st.just("short")))
def test_each_reason_stands_once_and_each_row_finds_its_own(reasons):
    said = []
    before = terminal.is_terminal, footnotes.say_hanging
    terminal.is_terminal = lambda: True
    footnotes.say_hanging = lambda head, text, style: said.append((head, text))
    try:
        notes = Footnotes()
        marks = [notes.mark(reason) for reason in reasons]
        notes.say()
    finally:
        terminal.is_terminal, footnotes.say_hanging = before
    assert [dict(said).get(mark, mark) for mark in marks] == reasons
    assert len({text for _, text in said}) == len(said)


def test_off_a_terminal_a_row_says_all(capsys):
    """Nor does --wide take anything out of a row."""
    notes = Footnotes()
    assert notes.mark("a reason that is long enough") == "a reason that is long enough"
    notes.say()
    assert capsys.readouterr().out == ""
