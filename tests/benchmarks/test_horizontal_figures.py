"""The figures of horizontal fusion in the documents are those of the raw files."""

import json
import re
from pathlib import Path

from benchmarks.common import json_lines

ROOT = Path(__file__).parents[2]
RAW = ROOT / "benchmarks/results/programs/2026-11-24"
BLOCKS = json.loads((RAW / "blocks.json").read_text())["blocks"]
PAGE = (ROOT / "docs/horizontal-fusion.md").read_text()


def ratios(way: str) -> list[float]:
    """default over that way, by block."""
    return [block["ways"]["default"]["us"] / block["ways"][way]["us"] for block in BLOCKS]


def test_the_table_of_the_page() -> None:
    rows = re.findall(r"^\| .* \| (\d+) \| ([\d.]+)x \| ([\d.]+)x \|$", PAGE, re.MULTILINE)
    assert [int(us) for us, _, _ in rows] == [round(block["ways"]["default"]["us"]) for block in BLOCKS]
    for found, *wanted in zip(rows, ratios("apart"), ratios("gemmdb"), strict=True):
        assert list(found[1:]) == [f"{one:.3f}" for one in wanted]


def test_the_line_of_the_readme() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    ends = f"{min(ratios('gemmdb')):.2f}x to {max(ratios('gemmdb')):.2f}x in six small models"
    assert ends in readme


def test_how_many_programs_have_such_kernels() -> None:
    programs = {row["program"]: row for row in json_lines(RAW / "installed-2.jsonl")}
    notes = [[one["note"] for one in row["ways"]["gemmdb"]["stats"]["products"]] for row in programs.values()]
    fused = sum(any(note.startswith("one kernel for") for note in some) for some in notes)
    assert f"{fused} of the {len(programs)} programs measured with it" in PAGE
