"""What kinds of kernels hold over ATen, from the lines of an exploration, and the figures that the page gives."""

from __future__ import annotations

import re

from benchmarks.common import ROOT, json_lines
from benchmarks.dense import explored

LINES = ROOT / "benchmarks" / "results" / "h200" / "dense" / "explored-2026-11-28.jsonl.xz"


def test_a_kernel_of_an_exploration_is_picked_by_even_rounds_and_counted_by_odd_ones() -> None:
    """cuBLASLt's is lucky in the even rounds; CUTLASS's adds to it; a slower kernel and an untimed one add nothing."""
    times = {
        "aten": [8, 8],
        "floor": [2, 1],
        "cublaslt": [4, 8],
        "triton": [9, 1],
        "cutlass": [2, 4],
        "cluster": [3, 3],
    }
    lines = [
        {"problem": "one", "m": 100, "group": group, "config": group, "rounds": rounds * 3}
        for group, rounds in times.items()
    ]
    lines.append({**lines[0], "group": "floor", "config": "read nothing", "rounds": [0.5] * 6})
    lines.append({"problem": "one", "m": 100, "group": "cluster", "config": "slow", "us": 9.0})
    title, _, *table = "\n".join(explored.text(lines)).strip().split("\n")
    assert title == "M 65 to 256, 1 GEMMs; reading B alone: 8.000x (8.000 to 8.000)"
    cells = [[cell.partition("x")[0].strip() for cell in line.strip("| ").split("|")] for line in table[2:]]
    assert cells == [
        ["cublaslt", "1.000", "1.000", "1.000"],
        ["triton", "1.000", "1.000", "1.000"],
        ["cutlass", "2.000", "2.000", "2.000"],
        ["cluster", "2.667", "2.000", "1.000"],
    ]


def test_more_kernels_for_few_rows_add_as_little_as_the_page_says() -> None:
    page = " ".join((ROOT / "docs" / "contributing" / "kernels.md").read_text().split())
    lines = json_lines(LINES)
    found = [re.findall(r"[\d.]+(?=x)|[\d.]+(?=\))", line) for line in explored.text(lines) if "to" in line]
    tables = [one for one in found if len(one) == 6]  # Three gains, each with the upper end of its interval.
    most = max(float(one[5]) for place, one in enumerate(tables) if place % 4 > 1)
    assert f"each add at most {most - 1:.1%}" in page
    assert f"{len({line['problem'] for line in lines})} bf16 GEMMs of 17 to 256 rows" in page
    assert {line.get("status", "ok") for line in lines if line["group"] in ("cutlass", "cluster")} == {"ok"}
