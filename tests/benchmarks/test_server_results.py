"""The figures of symbolic sizes and engine-shaped programs in docs/results.md are recomputed from the raw results."""

from __future__ import annotations

import json
import lzma
from statistics import median

from kit.results import RAW, WORDS, cells, section

from benchmarks.common import json_lines
from benchmarks.programs.figures import gain, times
from benchmarks.torch import symbolic


def test_one_compile_for_all_sizes_keeps_what_the_page_says() -> None:
    with lzma.open(RAW / "h200" / "symbolic.json.xz", "rt") as file:
        document = json.load(file)
    rows, host = document["rows"], document["host"]
    shown = [row for row in cells(section("Frozen starts and symbolic sizes")) if row[1].endswith(" us")]
    assert shown == [
        [f"{row['rows']:,}", f"{median(row['taken']['default']):,.1f} us", *(f"{one:.3f}x" for one in gains.values())]
        for row, gains in ((row, symbolic.gains(row)) for row in rows)
    ]
    said = symbolic.summary(rows)
    assert "static 1.056x of default mode, symbolic 1.058x" in said
    assert "slower than default mode: none" in said
    assert "1.058x of default mode in the geometric mean, and the compiles for each size 1.056x" in WORDS
    more = {int(m): us["gemmdb"] - us["default"] for m, us in host.items()}
    few, many = ([us for m, us in more.items() if (m <= 384) == low] for low in (True, False))
    assert [round(one) for one in (min(few), max(few), min(many), max(many))] == [-116, -41, -6, 3]
    told = "takes the host 41 to 116 us less than default mode's with up to 384 rows, and 6 us less to 3 us more"
    assert told in WORDS


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
