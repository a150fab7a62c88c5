"""What is printed, apart from any command."""

from __future__ import annotations

import json
import math

import pytest

from gemmdb.cli.output import count, evidence_facts, microseconds, one_line, say_facts, say_json
from gemmdb.cli.table import say_table


def test_json_has_no_nan(capsys):
    say_json("any", {"a": math.nan, "b": [math.inf, 1.5], "c": (1, None, True)})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "schema": "any", "version": 1, "a": None, "b": [None, 1.5], "c": [1, None, True],
    }  # fmt: skip


def test_one_line_neither_breaks_nor_steers_a_terminal():
    assert one_line("a\nb\t c\x1b[31m") == "a b c?[31m"


def test_facts_are_aligned(capsys):
    say_facts([("a", "1"), ("long", "2")])
    assert capsys.readouterr().out == "a     1\nlong  2\n"


def test_evidence_is_written_for_people():
    evidence = {
        "protocol": "protocol clock=host", "ties": ["a", "b"], "spread": 0.22579307781, "verified": True,
        "near": [{"d": 0.5}, {"d": 2}], "table": "x.db", "none": [],
    }  # fmt: skip
    assert list(evidence_facts(evidence, but=["table"])) == [
        ("protocol", "clock=host"), ("ties", "a, b"), ("spread", "0.2258"), ("verified", "yes"),
        ("near", "d: 0.5"), ("", "d: 2"), ("none", ""),
    ]  # fmt: skip


def test_a_table_off_a_terminal_is_never_folded_nor_padded(capsys):
    say_table(("name", "n"), [("x" * 300, "1"), ("[bold]y", "22")], right=("n",))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "x" * 300 + "   1"
    assert lines[2].split() == ["[bold]y", "22"]


@pytest.mark.parametrize(("value", "text"), [(8.314, "8.31 us"), (1250.0, "1.25 ms"), (2.4e6, "2.40 s")])
def test_microseconds(value, text):
    assert microseconds(value) == text


def test_count():
    assert (count(1, "row"), count(1200, "row")) == ("1 row", "1,200 rows")
