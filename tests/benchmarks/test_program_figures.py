"""The figures of real programs in docs/programs.md and in the README, computed anew from the raw files that the page
names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.common import ROOT, json_lines
from benchmarks.programs import states
from benchmarks.programs.figures import (
    DECODING,
    FORWARD,
    Row,
    class_of,
    comparing,
    failed,
    figures,
    gain,
    latest,
    mean,
    slower,
)
from benchmarks.programs.report import short
from benchmarks.programs.suite import suite

PAGE = (ROOT / "docs" / "programs.md").read_text().partition("## Figures so far")[2].partition("\n## ")[0]
SUITE, _, _ = PAGE.partition("### Programs that are not in the suite")
"""What the page says of the suite before it comes to other programs."""
README = (ROOT / "README.md").read_text()
SUMMARY = re.compile(r"^\| (\d+) ([^|]*?) \| ([\d.]+)x \| ([\d.]+)x \| ([\d.]+)x \|$", re.MULTILINE)
WORDS = {"decode": DECODING, "encoders": FORWARD, "training": "training", "int8": "int8", "fp8": "fp8"}
"""The first of these words in a line of the summary says which class of programs it is about."""


def raw() -> list[Row]:
    """The last row of each program in the files that the page's first paragraph names."""
    named = re.findall(r"benchmarks/results/programs/\S+?\.jsonl", PAGE.strip().partition("\n\n")[0])
    assert named
    return latest([row for name in named for row in json_lines(Path(ROOT, name))])


ALL = raw()
ROWS = [row for row in ALL if gain(comparing(row, "gemmdb", "default"), "gemmdb", "default")]
"""Those that were timed in both ways."""


def over_default(rows: Sequence[Row]) -> list[float]:
    """The gain of each program over default mode: the median of its rounds."""
    found = [gain(comparing(row, "gemmdb", "default"), "gemmdb", "default") for row in rows]
    return [one[1] for one in found if one is not None]


@pytest.mark.parametrize(("name", "text"), [("README.md", README), ("docs/programs.md", SUITE)])
def test_the_summary_is_that_of_the_raw_files(name: str, text: str) -> None:
    told = SUMMARY.findall(text)
    classes = [next(WORDS[word] for word in WORDS if word in title) for _, title, *_ in told]
    assert len(set(classes)) == len(classes) > 0
    for (count, title, *numbers), one in zip(told, classes, strict=True):
        gains = over_default([row for row in ROWS if class_of(row) == one])
        assert int(count) == len(gains), f"{name}: {title}"
        assert numbers == [f"{mean(gains):.3f}", f"{min(gains):.3f}", f"{max(gains):.3f}"], f"{name}: {title}"
    alone = over_default([row for row in ROWS if class_of(row) not in classes])
    missing = [f"{one:.3g}x" for one in alone if f"{one:.3g}x" not in text]
    assert not missing, f"{name}: each program is in one of the lines, or has its own figure in the text"


@pytest.mark.parametrize(("name", "text"), [("README.md", README), ("docs/programs.md", PAGE)])
def test_the_figures_of_compiling_are_those_of_the_raw_files(name: str, text: str) -> None:
    found = figures(ALL)
    words = " ".join(text.split())
    expected = (found["compile cold over default"], found["most seconds longer than default"])
    pattern = r"([\d.]+)x of default mode's time in the median, and at most ([\d.]+) s longer"
    assert re.findall(pattern, words) == [(f"{expected[0]:.2f}", f"{expected[1]:.1f}")], name


def test_the_number_of_programs_is_that_of_the_raw_files() -> None:
    assert re.findall(r"\[all (\d+)\]\(docs/programs\.md", README) == [str(len(ROWS))]
    assert PAGE.strip().startswith(f"{len(ROWS)} programs ")


@pytest.mark.parametrize("name", ["docs/results.md", "docs/never-slower.md"])
def test_other_pages_name_as_many_programs(name: str) -> None:
    assert re.findall(r"programs\.md#figures-so-far\) has (\d+) programs", (ROOT / name).read_text()) == [
        str(len(ROWS))
    ]


def test_each_program_of_the_page_is_that_of_the_raw_files() -> None:
    """`python -m benchmarks.programs report --short` prints this table."""
    head, _, *expected = short(ALL, "gemmdb")
    told = PAGE.partition(head)[2].partition("\n\n")[0].strip().splitlines()[1:]
    assert len(expected) == len(ROWS)
    assert told == expected


def named(*names: str, day: str = "2026-11-24") -> list[Row]:
    return [row for name in names for row in json_lines(ROOT / "benchmarks/results/programs" / day / name)]


def test_what_the_page_says_of_max_autotune_is_what_the_raw_file_says() -> None:
    table = PAGE.partition("### Against max-autotune")[2].partition("### ")[0]
    told = {
        cells[0]: cells[1:] for cells in re.findall(r"^\| ([\w-]+) \| ([\d.]+)x \| ([\d.]+)x \|", table, re.MULTILINE)
    }
    rows = named("max-autotune.jsonl", "max-autotune-2.jsonl") + named("max-autotune-3.jsonl", day="2026-11-25")
    rows = latest(rows + named("experts.jsonl", day="2026-11-26"))
    both = {row["program"]: row for row in rows if "max-autotune" in row["taken"]}
    over = {
        name: [gain(row, "gemmdb", other)[1] for other in ("default", "max-autotune")] for name, row in both.items()
    }
    assert told == {name: tuple(f"{one:.3f}" for one in pair) for name, pair in over.items()}
    slower_than_default = [name for name, row in both.items() if gain(row, "max-autotune", "default")[1] < 1]
    assert len(slower_than_default) == 11
    assert "slower than default mode in eleven of the 19" in " ".join(table.split())
    bf16 = [over[name][1] for name, row in both.items() if row["kind"] == "bf16"]
    assert f"The 16 bf16 programs are at {mean(bf16):.2f}x of max-autotune" in " ".join(table.split())
    longer = 1 / figures(list(both.values()))["compile cold over max-autotune"]
    assert f"took {longer:.1f} times as long" in " ".join(PAGE.split())


@pytest.mark.parametrize("cpus", [4, 8])
def test_the_compiles_with_processors_of_their_own_are_those_of_the_raw_files(cpus: int) -> None:
    found = figures(named(f"compiles-{cpus}.jsonl"))
    numbers = f"{found['compile cold over default']:.2f}x | {found['most seconds longer than default']:.1f}"
    assert f"| {found['programs']} | {numbers} |" in PAGE


def test_programs_that_got_slower_are_named() -> None:
    missing = [row["program"] for row in ROWS if slower(row, "gemmdb") and f"`{row['program']}`" not in PAGE]
    assert missing == []


def test_the_text_says_that_no_program_got_slower_and_none_failed() -> None:
    told = [("No program is slower" in " ".join(text.split())) for text in (README, PAGE)]
    assert told == [not any(slower(row, "gemmdb") for row in ROWS)] * 2
    assert not [row["program"] for row in ALL if row not in ROWS], "each has a result"


def test_the_programs_that_are_not_in_the_suite_are_those_of_their_raw_file() -> None:
    part = PAGE.partition("### Programs that are not in the suite")[2].partition("\n### ")[0]
    rows = named("held-out.jsonl")
    assert {row["program"] for row in rows} == set(suite(str(ROOT / "benchmarks/programs/held_out.py")))
    for (count, title, *numbers), one in zip(SUMMARY.findall(part), (DECODING, FORWARD, "training"), strict=True):
        gains = over_default([row for row in rows if class_of(row) == one])
        assert int(count) == len(gains), title
        assert numbers == [f"{mean(gains):.3f}", f"{min(gains):.3f}", f"{max(gains):.3f}"], title
    assert not any(slower(row, "gemmdb") or failed(row) for row in rows)
    found = figures(rows)
    took = f"took {found['compile cold over default']:.2f}x of default mode's time in the median"
    assert f"{took}, {found['most seconds longer than default']:.1f} s longer at most" in " ".join(part.split())


def test_the_states_of_the_cache_are_those_of_the_raw_files() -> None:
    page = (ROOT / "docs" / "measuring.md").read_text().partition("## In a program")[2].partition("\n## ")[0]
    files = re.findall(r"benchmarks/results/programs/\S+?\.jsonl", page.partition("| prediction |")[0])
    found = states.figures([one for name in files for row in json_lines(ROOT / name) for one in states.savings(row)])
    assert f"{found['products']} products of {found['programs']} programs" in page
    names = {
        "hot": "all operands in the cache",
        "program": "this protocol",
        "table": "the table",
        "cold": "all operands in",
    }
    for state, start in names.items():
        figures_of = found["states"][state]
        numbers = f"{figures_of['distance_us']:.2f} us | {figures_of['bias_us']:+.2f} us | {figures_of['served']} |"
        assert any(line.startswith(f"| {start}") and line.endswith(f"| {numbers}") for line in page.splitlines()), state
