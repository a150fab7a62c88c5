"""Every figure of programs in docs/results.md and README.md is recomputed from the raw results."""

from __future__ import annotations

import json
import lzma
import re
import statistics
from collections.abc import Iterable

import pytest
from kit.results import MODES, PAGE, RAW, README, WORDS, cells, section

from benchmarks.common import ROOT, json_lines
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

CLASSES = {"decode steps": DECODING, "training": "training", "int8": "int8", "fp8": "fp8"}
"""Words in the title of a summary row, and the class of programs that they stand for; others are FORWARD."""


SUITE = latest(json_lines(RAW / "programs" / "suite.jsonl.xz"))
HELD_OUT = latest(json_lines(RAW / "programs" / "held-out.jsonl.xz"))


def over_default(rows: Iterable[Row]) -> list[float]:
    found = [gain(comparing(row, "gemmdb", "default"), "gemmdb", "default") for row in rows]
    return [one[1] for one in found if one is not None]


@pytest.mark.parametrize(
    ("text", "rows"),
    [(section("Programs on an H200").partition("32 programs of other")[0], SUITE),
     (section("Programs on an H200").partition("32 programs of other")[2], HELD_OUT), (README, SUITE)],
    ids=["suite", "held out", "README"],
)  # fmt: skip
def test_the_summary_of_programs_is_that_of_the_raw_results(text: str, rows: list[Row]) -> None:
    told = re.findall(r"^\| (\d+) ([^|]*?) \| ([\d.]+)x \| ([\d.]+)x \| ([\d.]+)x \| ([\d.]+)x \|$", text, re.MULTILINE)
    assert told
    for count, title, *numbers in told:
        kind = next((CLASSES[word] for word in CLASSES if word in title), FORWARD)
        gains = over_default(row for row in rows if class_of(row) == kind)
        assert int(count) == len(gains), title
        expected = [mean(gains), statistics.median(gains), min(gains), max(gains)]
        assert numbers == [f"{one:.3f}" for one in expected], title


@pytest.mark.parametrize("text", [WORDS, " ".join(README.split())], ids=["results", "README"])
def test_int8_programs_have_a_median_and_a_range_and_no_mean(text: str) -> None:
    gains = over_default(row for row in SUITE if class_of(row) == "int8")
    told = re.findall(
        r"(\d+) programs with int8 weights [^.]*? have a median of ([\d.]+)x, from ([\d.]+)x to ([\d.]+)x", text
    )
    assert told == [(str(len(gains)), *(f"{one:.3f}" for one in (statistics.median(gains), min(gains), max(gains))))]


def test_no_program_is_slower_wrong_or_failed() -> None:
    for rows in (SUITE, HELD_OUT):
        assert not [row["program"] for row in rows if slower(row, "gemmdb") or failed(row)]
    assert {row["program"] for row in HELD_OUT} == set(suite(str(ROOT / "benchmarks/programs/held_out.py")))
    for text in (WORDS, README):
        assert "No program is slower" in text


def test_each_program_is_that_of_the_raw_results() -> None:
    assert "\n".join(short(SUITE, "gemmdb")) in PAGE
    assert f"\n{len(SUITE)} programs: models of" in PAGE


def test_the_programs_against_max_autotune_are_those_of_the_raw_results() -> None:
    timed = [row for row in json_lines(RAW / "programs" / "suite.jsonl.xz") if "max-autotune" in row.get("taken", {})]
    rows = {row["program"]: row for row in latest(timed)}
    over = {name: [gain(row, "gemmdb", way)[1] for way in MODES[:2]] for name, row in rows.items()}  # type: ignore[index]
    told = {name: [one.rstrip("x") for one in numbers] for name, *numbers in cells(section("Against max-autotune"))}
    assert told == {name: [f"{one:.3f}" for one in pair] for name, pair in over.items()}
    bf16 = [over[name][1] for name, row in rows.items() if row["kind"] == "bf16"]
    assert f"The {len(bf16)} bf16 programs are at {mean(bf16):.3f}x of it" in WORDS
    longer = 1 / figures(list(rows.values()))["compile cold over max-autotune"]
    assert f"took {longer:.1f} times as long as with gemmdb" in WORDS
    assert sum(gain(row, "max-autotune", "default")[1] < 1 for row in rows.values()) == 11  # type: ignore[index]
    assert f"slower than default mode in eleven of the {len(rows)}" in WORDS


def test_compile_times_are_those_of_the_raw_results() -> None:
    found = figures(SUITE)
    expected = (f"{found['compile cold over default']:.2f}", f"{found['most seconds longer than default']:.1f}")
    pattern = r"([\d.]+)x of default mode's time in the median, and at most ([\d.]+) s longer"
    assert re.findall(pattern, WORDS) == re.findall(pattern, " ".join(README.split())) == [expected]
    for cpus, row in ((8, cells(section("Compile time"))[0]), (4, cells(section("Compile time"))[1])):
        found = figures(json_lines(RAW / "programs" / f"compiles-{cpus}.jsonl.xz"))
        longest = f"{found['most seconds longer than default']:.1f}"
        assert row[1:] == [str(found["programs"]), f"{found['compile cold over default']:.2f}x", longest]


def test_the_blocks_with_one_kernel_for_several_gemms_are_those_of_the_raw_results() -> None:
    blocks = json.loads(lzma.decompress((RAW / "programs" / "blocks.json.xz").read_bytes()))["blocks"]
    us = [{way: facts["us"] for way, facts in block["ways"].items()} for block in blocks]
    expected = [
        [f"{one['default']:.0f}", *(f"{one['default'] / one[way]:.3f}x" for way in ("apart", "gemmdb"))] for one in us
    ]
    assert [row[1:] for row in cells(section("One kernel for several GEMMs"))] == expected


def test_the_llama_is_that_of_the_raw_results() -> None:
    lines = json_lines(RAW / "h200" / "models.jsonl.xz")
    tokens: dict[tuple[str, str], list[str]] = {}
    for line in lines:  # The last run of a row counts. Each mode counts in the faster of its spellings.
        for weights in ("int8", "bf16") if line["tokens"] == 1 else ():
            keys = [key for key in line["ms"] if key.startswith(weights)]
            ms = {mode: [line["ms"][key][1] for key in keys if key.endswith(f"/{mode}")] for mode in MODES}
            if all(ms.values()):
                tokens[str(line["rows"]), weights] = [f"{1000 * line['rows'] / min(ms[mode]):,.0f}" for mode in MODES]
    table = cells(section("A whole Llama-3-8B on an H200"))
    assert len(table) == 6
    for rows, weights, *told in table:
        assert told == tokens[rows, weights]
    *_, prefill = (line["ms"] for line in lines if line["tokens"] > 1)
    takes = [f"{prefill[f'bf16/{mode}'][1]:.1f}" for mode in ("gemmdb", "default", "max-autotune")]
    assert "takes {} ms with gemmdb, {} in default mode and {} with max-autotune".format(*takes) in WORDS
    for rows, weights in (("1", "int8"), ("16", "int8"), ("1", "bf16")):
        assert f"| {' | '.join(tokens[rows, weights])} |" in README.replace("*", "")


def test_the_cpu_is_that_of_the_demo() -> None:
    demo = json.loads((RAW / "demo.json").read_text())
    expected = [[f"{demo['compile_s'][mode]:.1f}" for mode in MODES]]
    expected += [[f"{us[mode]:,.0f}" for mode in MODES] for us in demo["run_us"].values()]
    assert [row[1:] for row in cells(section("On a CPU"))] == expected
    assert f"| {' | '.join(expected[-1])} |" in README.replace("*", "")
