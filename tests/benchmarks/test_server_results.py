"""The figures of symbolic sizes and engine-shaped programs in docs/results.md are recomputed from the raw results."""

from __future__ import annotations

import json
import lzma
from statistics import geometric_mean, median
from typing import Any

from kit.results import RAW, WORDS, cells, section

from benchmarks.common import json_lines
from benchmarks.programs.figures import gain, times
from benchmarks.torch import symbolic, vllm_layers


def document(name: str) -> dict[str, Any]:
    with lzma.open(RAW / "h200" / name, "rt") as file:
        found: dict[str, Any] = json.load(file)
    return found


def test_one_compile_for_all_sizes_keeps_what_the_page_says() -> None:
    listed, between = document("symbolic.json.xz"), document("symbolic-between.json.xz")
    shown = [row for row in cells(section("Frozen starts and symbolic sizes")) if row[1].endswith(" us")]
    assert shown == [
        [f"{row['rows']:,}", f"{median(row['taken']['default']):,.1f} us", *(f"{one:.3f}x" for one in gains.values())]
        for row, gains in ((row, symbolic.gains(row)) for row in (*listed["rows"], *between["rows"]))
    ]
    for found, static, one in ((listed, "1.054x", "1.054x"), (between, "1.070x", "1.057x")):
        said = symbolic.summary(found["rows"])
        assert f"static {static} of default mode, symbolic {one}" in said
        assert "slower than default mode: none" in said
    before = document("symbolic-between-before.json.xz")["rows"]
    assert "symbolic 1.021x" in symbolic.summary(before)
    assert [f"{symbolic.gains(row)['symbolic']:.3f}x" for row in before if row["rows"] == 144] == ["0.852x"]
    assert "were at 1.021x, and 144 rows at 0.852x" in WORDS
    again, once_more = (document(f"symbolic-between-{name}.json.xz")["rows"] for name in "bc")
    said = symbolic.summary(again)
    assert "static 1.071x of default mode, symbolic 1.051x" in said
    assert "slower than default mode: 304, 352, 1300, 1800, 2600;" in said
    ends = [(min(gains), max(gains)) for gains in (
        [symbolic.gains(row)["symbolic"] for row in rows if row["rows"] in few]
        for rows, few in ((again, (304, 352, 1300, 1800, 2600)), (once_more, (304, 352, 900, 1300, 1800, 2600, 3500)))
    )]  # fmt: skip
    low, high = (f"{one:.3f}x to {two:.3f}x" for one, two in ends)
    assert f"were at {low}; seven such sizes once more, in a run of their own, were at {high}" in WORDS
    assert "1.054x of default mode in the geometric mean, as do the compiles for each size" in WORDS
    assert "the one compile is at 1.057x, the compiles for each size at 1.070x" in WORDS
    more = {int(m): us["gemmdb"] - us["default"] for m, us in listed["host"].items()}
    few, many = ([us for m, us in more.items() if (m <= 1536) == low] for low in (True, False))
    assert [round(one) for one in (min(few), max(few), min(many), max(many))] == [-48, -19, -2, -2]
    assert "takes the host 19 to 48 us less than default mode's with up to 1,536 rows, and 2 us less with more" in WORDS


def test_the_layers_of_experts_are_those_of_the_raw_results() -> None:
    first, again = ({row["program"]: row for row in json_lines(RAW / "h200" / name)}
                    for name in ("expert-layers.jsonl.xz", "expert-layers-b.jsonl.xz"))  # fmt: skip
    for tokens, layer, *shown in (row for row in cells(section("Layers of experts")) if len(row) == 5):
        name, marked = layer.split()[0], "`b`" in layer
        program = f"experts-{name}-{tokens.replace(',', '')}"
        row = (again if marked else first)[program]
        assert marked is (program in again)
        ratios = [gain(row, "gemmdb", way) for way in ("default", "max-autotune")]
        assert shown == [f"{times(row)['default'][1]:,.0f} us", *(f"{one[1]:.3f}x" for one in ratios if one)]
    for way, said in (("default", "1.344x of default mode"), ("max-autotune", "1.067x of max-autotune")):
        gains = [found[1] for row in first.values() if (found := gain(row, "gemmdb", way))]
        assert len(gains) == 12
        assert said.startswith(f"{geometric_mean(gains):.3f}x")
        assert said in WORDS
    found = json.loads((RAW / "h200" / "vllm-experts.json").read_text())
    assert f"{found['over_default']:.3f}x as fast as with its default configs" in WORDS
    assert f"{found['over_vllm']:.3f}x as with the file" in WORDS


def test_the_layers_beside_vllm_are_those_of_the_raw_results() -> None:
    lines = {(line["tokens"], line["name"]): line for line in json_lines(RAW / "h200" / "vllm-layers.jsonl.xz")}
    shown = [row for row in cells(section("Layers of experts")) if len(row) == 7]
    assert len(shown) == len(lines)
    for tokens, name, *cell in shown:
        line = lines[int(tokens.replace(",", "")), name]
        us = [f"{line['us'][way][1]:,.1f} us" for way in ("default", "gemmdb", "vllm")]
        assert cell == [*us, *(f"{vllm_layers.gain(line, way):.3f}x" for way in ("default", "vllm"))]
    means = [geometric_mean(vllm_layers.gain(line, way) for line in lines.values()) for way in ("default", "vllm")]
    assert f"means are {means[0]:.3f}x of default mode and {means[1]:.3f}x of vLLM" in WORDS


def test_the_decoder_of_engines_is_that_of_the_raw_results() -> None:
    rows = {row["program"]: row for row in json_lines(RAW / "h200" / "engine.jsonl.xz")}
    shown = cells(section("A decoder as engines compile it"))
    assert len(shown) == len(rows) - 1
    for size, *cell in shown:
        row = rows[f"engine-{size}"]
        found = gain(row, "gemmdb", "default")
        assert found is not None
        compiled = [f"{row['ways'][way]['cold_s']:.1f}" for way in ("default", "gemmdb")]
        as_run = row["as_run"]
        ratios = [default / ours for default, ours in zip(as_run["default"], as_run["gemmdb"], strict=True)]
        gains = [f"{found[1]:.3f}x", f"{median(ratios):.3f}x"]
        assert cell == [f"{times(row)['default'][1]:,.0f} us", *gains, *compiled]
    low, middle, high = gain(rows["engine-start"], "gemmdb", "default") or (0, 0, 0)
    assert f"one after the other: {middle:.3f}x ({low:.3f} to {high:.3f})" in WORDS
