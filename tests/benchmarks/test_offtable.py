"""How answers to problems that no row is about are scored by what was measured."""

from __future__ import annotations

import argparse
import gzip
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common import ROOT, json_lines
from benchmarks.offtable import calibrate, fits, fresh_again, light, peers, sku
from gemmdb.generators.fit.bounds import Bounds, Outcome
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.lookup.bounds import FEATURES

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


def test_a_kernel_that_was_not_timed_is_no_score() -> None:
    triton, cutlass = (Config.of("aten", "padded", multiple=8), CUTLASS)
    found = fresh_again.figures([(triton, 1.2), (triton, None), (cutlass, 0.92), (cutlass, 0.5)])
    assert found["all"] == {"served": 4, "timed": 3, "by 5%": 2, "by 10%": 1, "worst": 0.5}
    assert found["CUTLASS"] == {"served": 2, "timed": 2, "by 5%": 2, "by 10%": 1, "worst": 0.5}
    assert fresh_again.figures([])["all"]["worst"] is None


def held(
    m: int, ratio: float | None, expected: float = -0.5, measured: float | None = -0.4, near: float = -0.1
) -> dict[str, Any]:
    """A line of `against-aten`: rung near serves a kernel of that ratio before a confirmation, which it expects at the
    logarithm `near`, and rung model one that is expected and measured at these logarithms."""
    served = {"rung": "near", "config": tile(64, 64).text, "speedup": 1.5, "ratio": ratio}
    found = [{"expected": near, "measured": ratio and math.log(ratio), "features": [0.0] * len(FEATURES)}]
    problem = Problem.gemm("mm", m=m, n=4096, k=4096)
    return {
        "held_out": "n, k", "problem": problem.text, "op": "mm", "m": m, "odd": False, "certain": None,
        "confirming": served, "near": found, "model": {"expected": expected, "measured": measured},
    }  # fmt: skip


def test_two_fits_are_compared_on_what_was_timed_of_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = [held(8, 0.5), held(64, 1.25), held(128, None), {**held(256, 0.8), "confirming": None}]
    new = [held(8, 0.4), held(64, 0.8), held(128, 0.5), {**held(256, 0.8, expected=-0.001), "confirming": None}]
    found = fits.figures([old, new])["n, k"]
    assert list(found) == ["all", "dense, 17 to 4,096 rows", "mm"]
    before, after = found["all"]["near, confirming"]
    assert (before["kernels"], before["timed"], before["slower"]) == (0.75, 2, 0.5)
    assert before["median"] == pytest.approx((2 + 0.8) / 2)
    assert before["all"] == pytest.approx((2 * 0.8) ** (1 / 3)), "the third was timed in one file only"
    assert after["all"] == pytest.approx((2.5 * 1.25) ** (1 / 3))
    assert after["over first"][0] == pytest.approx(after["all"] / before["all"])
    assert before["over first"] is None
    assert before["bounds"] == pytest.approx(2 / 3)
    assert [one["kernels"] for one in found["all"]["near, certain"]] == [0.0, 0.0]
    assert [one["kernels"] for one in found["all"]["model, certain"]] == [1.0, 0.75]
    assert after["error"] == pytest.approx((sum((math.log(one) + 0.1) ** 2 for one in (0.4, 0.8, 0.5, 0.8)) / 4) ** 0.5)
    paths = [tmp_path / f"{name}.jsonl.gz" for name in ("old", "new")]
    for path, lines in zip(paths, (old, new), strict=True):
        path.write_bytes(gzip.compress("".join(json.dumps(one) + "\n" for one in lines).encode()))
    fits.main(argparse.Namespace(files=paths, json=False))
    assert (
        "| n, k | all | 4 | near, confirming | old | 75.0% | 2 | 1.400x | 0.800x | 50.0% |" in capsys.readouterr().out
    )


def test_bounds_that_do_not_know_a_fold_are_counted_beside_the_shipped_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that are fitted to three lines let all kernels through that are expected to be faster, the shipped ones
    only those that are expected to be much faster."""
    lines = [held(8, 0.5, near=-0.5), held(8, 0.9, near=-0.02), held(8, 1.06, near=-0.02), held(8, 1.5, near=0.2)]
    asked: list[int] = []

    def fit(found: Sequence[Outcome], level: float) -> Bounds:
        asked.append(len(found))
        return Bounds({"mm": 0.0}, (0.0,) * len(FEATURES))

    monkeypatch.setattr(calibrate.bounds, "fit", fit)
    anew, shipped = calibrate.checked(lines, list(calibrate.outcomes(lines)), 0.99)
    assert asked == [0], "all have one (N, K)"
    assert anew.startswith(
        "n, k, anew: 4 problems, 3 kernels, 3 timed, 1 slower by 2%, 1 slower by 5%, 0 slower by 10%"
    )
    assert "50.0% of the candidates" in anew
    assert shipped.startswith("n, k, shipped: 4 problems, 1 kernels, 1 timed, 0 slower by 2%")
    assert f"gain {2**0.25:.4f}x" in shipped


@pytest.mark.slow
def test_no_certain_answer_of_rung_sku_is_slower_on_an_h100() -> None:
    """Answers that are timed first may be slower: the trial in the compile finds them."""
    with sku.opened(sku.H100) as tables:
        found, both, lost = sku.figures(tables), sku.against_near(tables), sku.where_aten_won(tables)
    certain, confirming = (way["all"]["kernels"] - way["all"]["unknown"] for way in found.values())
    assert (certain, confirming) == (807, 1065)
    assert [way["all"]["slower"] for way in found.values()] == [0, 2]
    each = {op: way["slower"] for op, way in found["confirming"].items() if way["slower"] and op != "all"}
    assert each == {"scaled_mm": 1, "grouped_mm": 1}
    assert both["near"] < 1.01 * both["sku"]
    assert lost["served"]["slower"] == 2


def test_few_certain_answers_from_rows_without_the_epilogue_are_slower() -> None:
    """Two of grouped_mm with 256 rows, by short estimates: 0.80x and 0.86x of ATen. 128 and 512 rows take less."""
    found = light.figures()
    assert {op: ways["certain"]["slower"] for op, ways in found.items() if "certain" in ways} == {
        "addmm": 0, "all": 2, "grouped_mm": 2, "mixed_mm": 0, "mm": 0, "scaled_mm": 0,
    }  # fmt: skip


@pytest.mark.slow
def test_no_answer_to_the_fresh_sample_is_slower_by_five_percent() -> None:
    """One of the first sample was timed before its kernel knew that K is a multiple of 8."""
    found = []
    for number in (1, 2, 3):
        lines = json_lines(ROOT / "benchmarks" / "results" / "offtable" / f"fresh-{number}.jsonl.gz")
        found.append(fresh_again.figures(list(fresh_again.scored(lines)))["all"])
    assert [one["timed"] for one in found] == [227, 245, 144]
    assert [one["by 5%"] for one in found] == [1, 0, 0]
