"""The figures of real programs in docs/programs.md and in the README, computed anew from the raw files that the page
names."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from benchmarks.common import ROOT, json_lines
from benchmarks.programs.figures import Row, comparing, gain, latest, mean, slower

PAGE = (ROOT / "docs" / "programs.md").read_text().partition("## Figures so far")[2].partition("\n## ")[0]
README = (ROOT / "README.md").read_text()
SUMMARY = re.compile(r"^\| (\d+) ([^|]*?) \| ([\d.]+)x \| ([\d.]+)x \| ([\d.]+)x \|$", re.MULTILINE)
PROGRAM = re.compile(r"^\| ([\w.+-]+) \| ([\d.]+) \(([\d.]+) to ([\d.]+)\) \| ([\d.]+) \| ([\d.]+) \|$", re.MULTILINE)
CLASSES: dict[str, Callable[[Row], bool]] = {
    "decode": lambda row: row["kind"] == "bf16" and bool(re.search("decode|generate", row["program"])),
    "training": lambda row: row["kind"] == "training",
    "int8": lambda row: row["kind"] == "int8",
    "fp8": lambda row: row["kind"] == "fp8",
    "encoders": lambda row: row["kind"] == "bf16" and not re.search("decode|generate", row["program"]),
}
"""The first of these words in a line of the summary says which programs it is about."""


def raw() -> list[Row]:
    """The last row of each program in the files that the page's first paragraph names."""
    named = re.findall(r"benchmarks/results/programs/\S+?\.jsonl", PAGE.strip().partition("\n\n")[0])
    assert named
    return latest([row for name in named for row in json_lines(Path(ROOT, name))])


ROWS = raw()


def over_default(rows: Sequence[Row]) -> list[float]:
    """The gain of each program over default mode: the median of its rounds."""
    found = [gain(comparing(row, "gemmdb", "default"), "gemmdb", "default") for row in rows]
    return [one[1] for one in found if one is not None]


@pytest.mark.parametrize(("name", "text"), [("README.md", README), ("docs/programs.md", PAGE)])
def test_the_summary_is_that_of_the_raw_files(name: str, text: str) -> None:
    told = SUMMARY.findall(text)
    words = [next(word for word in CLASSES if word in title) for _, title, *_ in told]
    assert len(set(words)) == len(words) > 0
    for (count, title, *figures), word in zip(told, words, strict=True):
        gains = over_default([row for row in ROWS if CLASSES[word](row)])
        assert int(count) == len(gains), f"{name}: {title}"
        assert figures == [f"{mean(gains):.3f}", f"{min(gains):.3f}", f"{max(gains):.3f}"], f"{name}: {title}"
    assert sum(int(count) for count, *_ in told) == len(ROWS), "each program is in one of the lines"


def test_the_number_of_programs_is_that_of_the_raw_files() -> None:
    assert re.findall(r"\[all (\d+)\]\(docs/programs\.md", README) == [str(len(ROWS))]
    assert PAGE.strip().startswith(f"{len(ROWS)} programs ")


def test_each_program_of_the_page_is_that_of_the_raw_files() -> None:
    told = {name: figures for name, *figures in PROGRAM.findall(PAGE)}
    expected = {}
    for row in ROWS:
        both = comparing(row, "gemmdb", "default")
        found = gain(both, "gemmdb", "default")
        assert found is not None
        low, median, high = found
        seconds = [f"{row['ways'][way]['cold_s']:.1f}" for way in ("default", "gemmdb")]
        expected[row["program"]] = [f"{median:.3f}", f"{low:.3f}", f"{high:.3f}", *seconds]
    assert told.keys() == expected.keys()
    assert {name: figures for name, figures in told.items() if figures != expected[name]} == {}


def test_programs_that_got_slower_are_named() -> None:
    missing = [row["program"] for row in ROWS if slower(row, "gemmdb") and f"`{row['program']}`" not in PAGE]
    assert missing == []
