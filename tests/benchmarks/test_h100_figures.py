"""What the documents say about an H100 is what was measured there."""

from __future__ import annotations

import gzip
import json
import math
import re
from pathlib import Path
from statistics import geometric_mean as mean
from typing import Any

from benchmarks.common import ROOT, json_lines
from benchmarks.h200 import peers_report
from benchmarks.h200.results import archives
from benchmarks.offtable import light, sku
from benchmarks.programs import figures
from gemmdb.generators.files import archive
from gemmdb.key.problem import Problem
from gemmdb.settings import shipped_tables
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store
from tools.release import ship

RAW = ROOT / "benchmarks" / "results" / "h100" / "2026-11-25"
PAGE = (ROOT / "docs" / "results.md").read_text().partition("## On an H100")[2].partition("\n## ")[0]
TABLE = shipped_tables() / "sm90-nvidia-h100-80gb-hbm3.db"


def few_rows(problem: Problem) -> bool:
    """Whether it has an int4 weight and up to 16 rows."""
    return problem.int4 is not None and problem.m <= 16


def test_the_shipped_table_holds_and_gains_what_the_page_says() -> None:
    with Table.open(TABLE, immutable=True) as table:
        found = [(key[0], table.verdict(*key).speedup) for key in table.decided()]  # type: ignore[union-attr]
    gains, scaled = [gain for _, gain in found], [one for one in found if one[0].op == "scaled_mm"]
    page = " ".join(PAGE.split())
    assert f"{len(gains)} problems, most at standard effort, {mean(gains):.2f}x" in page
    few, many = ([gain for problem, gain in scaled if (problem.m <= 64) is small] for small in (True, False))
    assert f"{mean(few):.2f}x over {len(few)} problems with up to 64 rows, {mean(many):.2f}x over {len(many)}" in page
    assert f"measured, {len(gains)} problems" in (ROOT / "docs" / "install.md").read_text()
    assert f"These {len(gains)} ship as a table of the H100" in (ROOT / "CHANGELOG.md").read_text()


def test_no_certain_answer_of_rung_sku_is_slower_and_the_page_has_the_figures() -> None:
    with sku.opened(sku.H100) as tables:
        found, both, lost = sku.figures(tables), sku.against_near(tables), sku.where_aten_won(tables)
    assert [way["all"]["slower"] for way in found.values()] == [0, 6]
    each = {op: way["slower"] for op, way in found["confirming"].items() if way["slower"] and op != "all"}
    assert each == {"scaled_mm": 3, "mixed_mm": 2, "grouped_mm": 1}
    worst = f"{found['confirming']['all']['worst']:.2f}x"
    certain, confirming = (way["all"]["kernels"] - way["all"]["unknown"] for way in found.values())
    page = " ".join((ROOT / "docs" / "lookup.md").read_text().split())
    assert f"{confirming} before a confirmation and {certain} without one, six of the former are slower" in page
    assert f"three of scaled_mm, two of mixed_mm, one of grouped_mm; the worst is at {worst}" in page
    changes = " ".join((ROOT / "CHANGELOG.md").read_text().split())
    assert f"an H100, {confirming} get a kernel" in changes
    assert f"and {certain} get one without a confirmation, none of them slower" in changes
    assert "\n".join(sku.markdown(found)) in (ROOT / "docs" / "lookup.md").read_text()
    _compared_with_neighbours(page, both, lost["served"])


def _compared_with_neighbours(page: str, both: dict[str, Any], served: dict[str, Any]) -> None:
    """Rows of the very problem gain as much as close neighbours."""
    assert both["near"] < 1.01 * both["sku"]
    assert f"Of {both['problems']} problems for which both name a kernel" in page
    assert f"gain {both['near']:.3f}x over ATen, rows of an H200 {both['sku']:.3f}x" in page
    assert f"the fastest kernels {both['best']:.3f}x" in page
    words = f"{served['problems']} problems that ATen won on an H100"
    assert words in page
    assert f"these gain {served['gain']:.3f}x" in page
    assert served["slower"] == 3
    assert "three are slower by 2%" in page


def test_the_page_says_what_rows_without_an_epilogue_tell() -> None:
    found = light.figures()
    assert "\n".join(light.markdown(found)) in (ROOT / "docs" / "lookup.md").read_text()
    assert found["all"]["certain"]["slower"] == 0


def test_the_pages_say_what_the_lean_form_gains() -> None:
    best: dict[tuple[str, str, str], float] = {}
    for run in json_lines(RAW.parent / "2026-11-27" / "lean.jsonl"):
        key = run["problem"], run["config"], run["tag"].rstrip("12")
        best[key] = min(best.get(key, math.inf), run["us"] / run["aten"])
    took = sorted(best[problem, config, "new"] / us for (problem, config, tag), us in best.items() if tag == "old")
    page = " ".join((ROOT / "docs" / "kernels.md").read_text().split())
    assert f"took between {took[0]:.2f} and {took[-1]:.2f} of the time on {len(took)} problems of an H100" in page
    assert f"of an H100, {mean(took):.2f} in the mean" in page
    with Table.open(TABLE, immutable=True) as table:
        few = [key for key in table.decided() if few_rows(key[0])]
        picks = [table.verdict(*key).pick for key in few]  # type: ignore[union-attr]
    lean = sum("lean" in pick.values for pick in picks)
    assert f"is the fastest of {lean} of {len(picks)} products with up to 16 rows" in " ".join(PAGE.split())


def test_int4_products_gain_what_the_page_says_over_the_rows_before_the_lean_form(tmp_path: Path) -> None:
    paths = [path for folder in sku.H100[:2] for path in archives(folder)]
    archive.restore(paths, tmp_path / "before.db", lambda row: few_rows(row.problem) and ship.holds(row))
    with Store.open(tmp_path / "before.db") as store:
        store.refresh()
    with Table.open(tmp_path / "before.db") as before, Table.open(TABLE, immutable=True) as after:
        gains = {
            key[0]: after.verdict(*key).speedup / before.verdict(*key).speedup  # type: ignore[union-attr]
            for key in before.decided()
        }
    tiled = [gain for problem, gain in gains.items() if problem.int4 is not None and problem.int4.inner]
    in_bytes = [gain for problem, gain in gains.items() if problem.int4 is not None and not problem.int4.inner]
    every, of_bytes, of_tiled = (100 * (mean(some) - 1) for some in (gains.values(), in_bytes, tiled))
    page = " ".join(PAGE.split())
    assert f"On {len(gains)} that had rows before, the fastest kernel gained {every:.1f}%" in page
    assert f"{of_bytes:.0f}% for weights in bytes, {of_tiled:.1f}% for tiled ones" in page


def test_warps_side_by_side_were_as_slow_as_the_page_says() -> None:
    with gzip.open(RAW.parent / "2026-11-27" / "side-by-side.jsonl.gz", "rt") as file:
        lines = [json.loads(line) for line in file]
    took = sorted(
        min(us for config, us in line["us"].items() if "warps_n" in config)
        / min(us for config, us in line["us"].items() if "warps_n" not in config)
        for line in lines
    )
    slower, faster = ([one for one in took if (one > 1) is way] for way in (True, False))
    page = " ".join((ROOT / "docs" / "kernels.md").read_text().split())
    assert f"on {len(slower)} of {len(took)} products, by up to {100 * (slower[-1] - 1):.0f}%" in page
    assert len(faster) == 2
    assert "faster on two, by {1:.0f}% and {0:.0f}%".format(*(100 * (1 / one - 1) for one in faster)) in page


def test_the_samples_against_max_autotune_have_the_worst_that_the_page_names() -> None:
    files = [RAW.parent / "2026-11-27" / name for name in ("peers-of-three-ops.jsonl", "peers.jsonl")]
    lines = [line for file in files for line in json_lines(file) if "problem" in line and peers_report.right(line)]
    worst = {
        name: min((peers_report.gain(line, "autotune"), peers_report.upper(line, "autotune"))
                  for line in lines if line["stratum"] == name)
        for name in dict.fromkeys(line["stratum"] for line in lines if not line["stratum"].startswith("mixed_mm"))
    }  # fmt: skip
    page, (gain, upper) = " ".join(PAGE.split()), worst.pop("bmm")
    assert f"{gain:.2f}x of bmm, whose interval reaches {upper:.2f}x, and 1.00x of the others" in page
    assert [f"{gain:.2f}" for gain, _ in worst.values()] == ["1.00"] * 3


def test_an_earlier_sample_against_max_autotune_was_as_the_page_says() -> None:
    earlier, later = RAW.parent / "2026-11-26" / "peers.jsonl", RAW.parent / "2026-11-27" / "peers-of-three-ops.jsonl"
    summary = peers_report.summary(json_lines(earlier))
    assert summary is not None
    told = {one["problems"]: (one["number"], f"{one['autotune']:.2f}x") for one in summary["figures"]}
    page = " ".join(PAGE.split())
    groups, batches = told["grouped_mm"], told["bmm"]
    assert f"{groups[0]} of grouped_mm were at {groups[1]} and {batches[0]} of bmm at {batches[1]}" in page
    both = {line["problem"] for line in json_lines(earlier) if "us" in line}
    both &= {line["problem"] for line in json_lines(later) if "us" in line}
    assert (len(both), {Problem.parse(text).op for text in both}) == (3, {"bmm"})


def test_the_programs_ran_as_the_page_says() -> None:
    files = [RAW.parent / day / "programs.jsonl" for day in ("2026-11-25", "2026-11-26", "2026-11-27")]
    runs = {run["program"]: run for file in files for run in json_lines(file)}  # The last of each.
    for name, run in runs.items():
        low, middle, _ = figures.gain(run, "gemmdb", "default") or [math.nan] * 3
        us, seconds = figures.times(run)["default"][1], [run["ways"][way]["cold_s"] for way in ("default", "gemmdb")]
        assert f"| {name} | {us:,.0f} | {middle:.3f}x | {seconds[0]:.1f} | {seconds[1]:.1f} |" in PAGE
        assert low > 0.99
        if "max-autotune" in run["ways"]:
            against = (figures.gain(run, "gemmdb", "max-autotune") or [0.0] * 3)[1]
            assert against > 1
            assert f"{name} {against:.3f}x" in " ".join(PAGE.split())
    assert len(runs) == len(
        re.findall(r"^\| [a-z0-9-]+ \| [\d,]+ \| [\d.]+x \| [\d.]+ \| [\d.]+ \|$", PAGE, re.MULTILINE)
    )


def test_the_gated_form_gained_what_the_page_says() -> None:
    page = (ROOT / "docs" / "horizontal-fusion.md").read_text()
    for block in json.loads((RAW / "gated-blocks.json").read_text())["blocks"]:
        us = [f"{block['ways'][way]['us']:.1f}" for way in ("default", "apart", "ungated", "gemmdb")]
        assert f"| {' | '.join(us)} |" in page
