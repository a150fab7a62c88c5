"""What the README shows: its programs run, its commands exist, its figures are those of the raw results."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()
RESULTS = ROOT / "benchmarks" / "results"
PROGRAMS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
WAYS = ("default", "max-autotune", "gemmdb")
DECODED = {"int8": (1, 4, 16, 64), "bf16": (1, 16)}
"""The numbers of rows in the table of decode steps, by weights."""


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.splitlines()[0])
def test_the_programs_run(program: str, tmp_path: Path) -> None:
    if "torch" in program:
        pytest.importorskip("torch")
    environ = {**os.environ, "XDG_DATA_HOME": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environ, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout


def test_it_is_one_page() -> None:
    assert len(TEXT.splitlines()) <= 88


def test_the_commands_are_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"^make (\w+)", TEXT, re.MULTILINE))
    assert named == {"demo", "test"}
    assert [target for target in named if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


def test_the_figures_are_those_of_the_raw_results() -> None:
    """Every row of the README's table, computed anew; docs/results.md has the same rows of decode and of the demo."""
    decode, demo = decoding(), json.loads((RESULTS / "demo.json").read_text())
    assert rows("README.md", 3) == [
        decode["1", "int8"],
        decode["16", "int8"],
        decode["1", "bf16"],
        [f"{prefilling()[way]:.1f}" for way in WAYS],
        [f"{demo['run_us']['int8-weight linear'][way]:,.0f}" for way in WAYS],
    ]
    told = rows("docs/results.md", 3)
    ran = [[f"{times[way]:,.0f}" for way in WAYS] for times in demo["run_us"].values()]
    expected = [[f"{demo['compile_s'][way]:.1f}" for way in WAYS], *ran, *decode.values()]
    assert told[: len(expected)] == expected


def rows(name: str, count: int) -> list[list[str]]:
    """The figures of each row of a document's tables that has so many of them behind its title, in order."""
    lines = re.findall(r"^\|(.*)\|$", (ROOT / name).read_text().replace("*", ""), re.MULTILINE)
    cells = [[cell.strip() for cell in line.split("|")[1:]] for line in lines]
    figures = [[cell for cell in row if re.fullmatch(r"[\d.,]+", cell)] for row in cells]
    return [row for row in figures if len(row) == count]


def models() -> list[dict[str, dict[str, list[float]]]]:
    """The lines of the runs that the README's figures of models are from."""
    files = ("2026-11-22b.jsonl", "2026-11-22c.jsonl", "2026-11-25.jsonl")
    return [json.loads(line) for name in files for line in (RESULTS / "h200/models" / name).read_text().splitlines()]


def decoding() -> dict[tuple[str, str], list[str]]:
    """Tokens per second by rows and weights, each way in its faster spelling; the second time is the median. Newer runs
    come last."""
    found = {}
    for line in models():
        for weights in DECODED if line["tokens"] == 1 else ():
            ms = {way: [line["ms"][key][1] for key in line["ms"] if of(key, weights, way)] for way in WAYS}
            if all(ms.values()):
                found[str(line["rows"]), weights] = [f"{1000 * line['rows'] / min(ms[way]):,.0f}" for way in WAYS]
    return {(str(rows), weights): found[str(rows), weights] for weights in DECODED for rows in DECODED[weights]}


def of(key: str, weights: str, way: str) -> bool:
    """Whether a variant of a run, such as `int8-before/gemmdb`, is of these weights and this way."""
    return key.startswith(weights) and key.endswith("/" + way)


def prefilling() -> dict[str, float]:
    """Milliseconds of the last bf16 prefill, by way."""
    (*_, last) = (line["ms"] for line in models() if line["tokens"] > 1)
    return {way: last[f"bf16/{way}"][1] for way in WAYS}
