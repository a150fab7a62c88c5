"""docs/results.md, README.md, and where the raw results of their figures are."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
RAW = ROOT / "benchmarks" / "results"
PAGE = (ROOT / "docs" / "results.md").read_text()
README = (ROOT / "README.md").read_text()
WORDS = " ".join(PAGE.split())
MODES = ("default", "max-autotune", "gemmdb")


def section(title: str) -> str:
    """The text under a heading of docs/results.md, down to the next heading."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def cells(text: str) -> list[list[str]]:
    """The cells of the rows of all tables in a text, without their heads."""
    rows = re.findall(r"^\|[ -](?!-)(.*) \|$(?!\n\|--)", text, re.MULTILINE)
    return [[cell.strip() for cell in row.split("|")] for row in rows]
