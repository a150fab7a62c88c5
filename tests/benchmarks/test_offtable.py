"""How answers to problems that no row is about are scored by what was measured."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from benchmarks.common import ROOT, json_lines
from benchmarks.offtable import fresh_again, peers
from gemmdb.cost.features import TREE_OPS
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem

CUTLASS = Config.of(
    "cutlass", "gemm", tile_m=64, tile_n=64, tile_k=128, cluster_m=1, cluster_n=1, schedule="pingpong", split_k=1,
    swizzle=1, raster="auto", swap=1,
)  # fmt: skip


def tile(m: int, n: int, swap: int = 0, split: int = 1) -> Config:
    return Config.of(
        "triton", "tile", block_m=m, block_n=n, block_k=64, group_m=8, split_k=split,
        reduce="none" if split == 1 else "kernel", swap=swap, load="pointer", dequant="cast", warps=4, stages=3,
    )  # fmt: skip


def test_a_tile_is_the_nearest_that_was_timed() -> None:
    shares = {ATEN: 0.5, tile(64, 64): 0.9, tile(128, 16, swap=1): 0.8, tile(64, 64, split=4): 1.0}
    wanted = [peers.Wanted(64, 64, 64, 1, 4, 3), peers.Wanted(16, 128, 64, 1, 4, 3), peers.Wanted(64, 128, 64, 4, 4, 3)]
    found = peers.nearest(wanted, shares, peers.TRITON)
    assert found.shares == [0.9, 0.8, 1.0]
    assert found.distances == [0, 0, 1]
    assert found.row(0.5)["four"] == 1.0


def test_tiles_that_come_to_the_same_count_once() -> None:
    wanted = [peers.Wanted(64, n, 64, 1, 4, 3) for n in (64, 128)]
    found = peers.nearest(wanted, {ATEN: 0.95, tile(64, 64): 0.9}, peers.TRITON)
    assert found.shares == [0.9]
    assert found.row(0.95) == {"first": 0.9, "four": 0.95, "all": 0.95, "distance": 0, "exact": 1, "tiles": 1}


def test_where_nothing_of_the_kind_was_timed_there_is_no_score() -> None:
    assert peers.nearest([peers.Wanted(64, 64, 64, 1, 4, 3)], {ATEN: 0.95}, peers.TRITON).row(0.95) == {}


def test_inductors_list_is_cut_to_the_sizes() -> None:
    pytest.importorskip("torch")
    small, large = (peers.inductor(Problem.gemm("mm", m=m, n=4096, k=4096, dtype="bf16")) for m in (16, 4096))
    assert {one.m for one in small} == {16}
    assert max(one.m for one in large) >= 128
    assert peers.inductor(Problem.gemm("mixed_mm", m=16, n=4096, k=4096, dtype="bf16")) == []


def test_what_the_tables_answer_now_is_scored_by_the_times_of_then() -> None:
    """The figures of docs/lookup.md."""
    folder = ROOT / "benchmarks" / "results" / "offtable"
    found = [fresh_again.figures(list(fresh_again.scored(json_lines(folder / f"fresh-{n}.jsonl.gz")))) for n in (1, 2)]
    compiled = [one["CUTLASS"] for one in found]
    assert [one["by 5%"] for one in compiled] == [0, 0]
    served, timed = (sum(one[name] for one in compiled) for name in ("served", "timed"))
    worst = min(one["worst"] for one in compiled)
    text = " ".join((ROOT / "docs" / "lookup.md").read_text().split())
    assert f"problems {served} get one now; {timed} of these were timed, the worst at {worst:.2f}x of ATen" in text


OFFTABLE = ROOT / "benchmarks" / "results" / "offtable"
NAMES = {"all of an (N, K)": "n, k", "all of a class of M": "class of m"}


def _own(way: str, op: str) -> list[dict[str, Any]]:
    lines = json_lines(OFFTABLE / "against-aten-own.jsonl.gz")
    return [one for one in lines if one["held_out"] == way and one["op"] == op]


def _figures(lines: list[dict[str, Any]], rungs: tuple[str, ...]) -> list[str]:
    """Kernels, timed ones, those slower by 5%, and the gain, as the table of docs/lookup.md has them."""
    served = [one["certain"] for one in lines if one["certain"] and one["certain"]["rung"] in rungs]
    ratios = [one["ratio"] for one in served if one["ratio"] is not None]
    gain = math.exp(-sum(map(math.log, ratios)) / len(lines))
    return [str(len(served)), str(len(ratios)), str(sum(one > 1.05 for one in ratios)), f"{gain:.3f}x"]


def test_what_ops_with_trees_of_their_own_are_served() -> None:
    """The tables of docs/lookup.md: no kernel that the model adds is slower than ATen."""
    section = (ROOT / "docs" / "lookup.md").read_text().partition("### Ops with trees of their own")[2]
    section = section.partition("\n### ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    way, op = "", ""
    seen = 0
    for first, of, problems, rungs, *told in (row for row in rows if len(row) == 8 and row[3] in RUNGS):
        way, op = NAMES.get(first, way), of.strip("`") or op
        lines = _own(way, op)
        assert problems in ("", str(len(lines)))
        assert told == _figures(lines, RUNGS[rungs])
        seen += 1
    assert seen == 8
    lines = [one for way in NAMES.values() for op in TREE_OPS for one in _own(way, op)]
    added = [one["certain"]["ratio"] for one in lines if one["certain"] and one["certain"]["rung"] == "model"]
    timed = [ratio for ratio in added if ratio is not None]
    assert max(timed) < 1
    assert f"None of the {len(timed)} timed kernels" in " ".join(section.split())
    assert f"the slowest is at {1 / max(timed):.2f}x" in section
    for name, way in NAMES.items():
        gains = [f"{_live(_own(way, op)):.3f}x" for op in ("scaled_mm", "bmm")]
        assert [name, *gains] in rows


RUNGS = {"near": ("near",), "near and model": ("near", "model")}


def _live(lines: list[dict[str, Any]]) -> float:
    """What the best of ATen and of live tuning's timed candidates gains."""
    best = (min([1.0, *(ratio for ratio in one["live"] if ratio is not None)]) for one in lines)
    return math.exp(-sum(map(math.log, best)) / len(lines))


def test_how_good_the_trees_of_single_ops_are() -> None:
    """The figures of docs/lookup.md."""
    document = json.loads((OFFTABLE / "model-own.json").read_text())
    found, text = document["held_out_with_trees"], (ROOT / "docs" / "lookup.md").read_text()
    for title, name in (
        ("its first", "order"), ("best of its first four and ATen", "top4"),
        ("served under the default policy", "served_default"), ("for comparison: ATen", "aten"),
    ):  # fmt: skip
        cells = (f"{found[op][name]['mean']:.3f} ({found[op][name]['p5']:.2f})" for op in ("bmm", "scaled_mm"))
        assert f"| {title} | {' | '.join(cells)} |" in text
    clear = found["all"]["clear"]
    assert clear["gained"] == clear["problems"]
    assert f"All of the {clear['problems']} of them" in text
    assert f"The same for {found['all']['problems']:,} problems" in text


def test_a_kernel_that_was_not_timed_is_no_score() -> None:
    triton, cutlass = (Config.of("aten", "padded", multiple=8), CUTLASS)
    found = fresh_again.figures([(triton, 1.2), (triton, None), (cutlass, 0.92), (cutlass, 0.5)])
    assert found["all"] == {"served": 4, "timed": 3, "by 5%": 2, "by 10%": 1, "worst": 0.5}
    assert found["CUTLASS"] == {"served": 2, "timed": 2, "by 5%": 2, "by 10%": 1, "worst": 0.5}
    assert fresh_again.figures([])["all"]["worst"] is None
