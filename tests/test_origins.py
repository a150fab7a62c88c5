"""`docs/contributing/origins.md` explains every row S1 to S24 that a test cites, and the tests that it names exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "contributing" / "origins.md").read_text()
ROWS = dict(re.findall(r"^\| (S\d+) \|.*\| (.*) \|$", PAGE, re.MULTILINE))
"""The tests that each row names, by row."""
TESTS = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__)}


def test_there_are_24_rows() -> None:
    assert list(ROWS) == [f"S{number}" for number in range(1, 25)]


def test_every_row_names_a_test_that_exists() -> None:
    for row, shown in ROWS.items():
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", shown)
        assert named, f"{row} names no test"
        for path, name in named:
            assert re.search(rf"^def {name}\(", TESTS[ROOT / path], re.MULTILINE), f"{row}: {path}::{name}"


def test_every_test_that_is_called_after_a_row_is_named_in_it() -> None:
    found = {
        (f"S{number}", name) for text in TESTS.values() for name, number in re.findall(r"def (test_s(\d+)_\w+)", text)
    }
    assert found
    assert [name for row, name in sorted(found) if f"::{name}`" not in ROWS[row]] == []


def test_every_row_that_a_docstring_cites_exists() -> None:
    cited = {row for text in TESTS.values() for row in re.findall(r"\b[Rr]ows? (S\d+)\b", text)}
    assert cited
    assert cited <= set(ROWS)
