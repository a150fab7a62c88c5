"""Rung `epilogue` on a GPU: what exponentials, transposed stores and a bias are charged that no row has."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.h200 import stores
from gemmdb.cost.roofline import TRANSPOSED
from gemmdb.devices import registry
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.lookup import answer
from gemmdb.lookup.epilogue import stand_ins
from gemmdb.settings import Policy

ROOT = Path(__file__).parents[2]
POLICY = Policy(on_miss="aten")
TILE = Config.of(
    "triton", "tile", block_m=64, block_n=128, block_k=64, group_m=8, split_k=1, reduce="none", swap=0, load="pointer",
    dequant="cast", warps=4, stages=3,
)  # fmt: skip


@pytest.mark.parametrize(
    ("fusion", "aten_us", "served"),
    [
        ("pointwise:math", 100.0, 100 / (80 + 2.92)),
        # Of a short product, an exact GELU takes more than relu saved.
        ("pointwise:math", 12.0, None),
        ("pointwise:reads1", 12.0, 1 / 0.8),
        ("pointwise:transposed", 12.0, 1 / (0.8 * 1.05)),
        ("pointwise:reads1:permuted", 12.0, 1 / 0.8),
        ("pointwise:math:transposed", 100.0, 100 / (80 * 1.05 + 2.92)),
    ],
)
def test_exponentials_and_transposed_stores_are_charged_on_a_gpu(lab, monkeypatch, tmp_path, fusion, aten_us, served):
    monkeypatch.setattr("gemmdb.table.catalog.shipped_tables", lambda: tmp_path / "none")
    problem, h200 = Problem.gemm("mm", m=1024, n=3072, k=768), registry.find("NVIDIA H200")
    tables = lab.catalog([
        row for word, ratio in (("pointwise", 0.8), ("none", 1.0))
        for row in lab.rows(replace(problem, fusion=word), {TILE: ratio}, aten_us=aten_us, device=h200, clock="graph")
    ])  # fmt: skip
    hit = answer(lab.query(replace(problem, fusion=fusion), h200), tables, replace(POLICY, model=False))
    assert hit.rung == "epilogue"
    assert (hit.config == ATEN) == (served is None)
    assert hit.speedup == pytest.approx(served or 1.0, rel=1e-3)


def test_a_transposed_store_is_charged_what_it_was_measured_to_cost():
    found = json.loads((ROOT / "benchmarks/results/h200/stores.json").read_text())
    gains = {Problem.parse(row["problem"]): stores.gain(row) for row in found["rows"]}
    assert list(gains) == list(stores.problems())
    lost = [gains[replace(problem, fusion="pointwise")] / gain - 1
            for problem, gain in gains.items() if problem.fusion == "pointwise:transposed"]  # fmt: skip
    assert max(lost) == pytest.approx(TRANSPOSED, abs=0.005)


@pytest.mark.parametrize(("fusion", "ratio", "gain"), [
    ("pointwise:math", 0.8, 1 / (0.8 * 1.14)), ("pointwise", 0.8, 1 / (0.8 * 1.14)),
    ("pointwise:math:kept", 0.8, 1 / (0.8 * 1.14)),
    ("pointwise:math", 0.88, None),  # With a bias it may gain nothing.
    ("pointwise:math", 1.2, None),
])  # fmt: skip
def test_on_a_gpu_rows_without_the_bias_answer(lab, monkeypatch, tmp_path, fusion, ratio, gain):
    monkeypatch.setattr("gemmdb.table.catalog.shipped_tables", lambda: tmp_path / "none")
    h200 = registry.find("NVIDIA H200")
    asked = Problem.gemm("addmm", m=1024, n=3072, k=768, fusion=fusion)
    alone = replace(asked, op="mm", bias=None)
    tables = lab.catalog([
        *lab.rows(alone, {TILE: ratio}, device=h200, clock="graph"),
        *lab.rows(replace(asked, fusion="none"), {TILE: 1.0}, device=h200, clock="graph"),
    ])  # fmt: skip
    hit = answer(lab.query(asked, h200), tables, replace(POLICY, model=False))
    assert (hit.rung, hit.config == ATEN) == ("epilogue", gain is None)
    assert hit.speedup == pytest.approx(gain or 1.0, rel=1e-3)
    slow_alone = lab.catalog([
        *lab.rows(alone, {TILE: ratio}, device=h200, clock="graph"),
        *lab.rows(replace(asked, fusion="none"), {TILE: 1.1}, device=h200, clock="graph"),
    ])  # fmt: skip
    left = answer(lab.query(asked, h200), slow_alone, replace(POLICY, model=False))
    assert left is None if fusion == "pointwise" else left.config == ATEN


@pytest.mark.parametrize(("ratio", "gain"), [(0.6, 1 / (0.6 * 1.14)), (0.9, None)])
def test_a_scaled_integer_product_that_stays_fp32_has_the_rows_of_one_in_bf16(lab, monkeypatch, tmp_path, ratio, gain):
    """Of torchao's int8 linear with SiLU behind it, where Inductor drops the cast to bf16 between them."""
    monkeypatch.setattr("gemmdb.table.catalog.shipped_tables", lambda: tmp_path / "none")
    h200, stored = registry.find("NVIDIA H200"), Problem.gemm("int_mm", m=1024, n=3072, k=768, fusion="scale")
    tables = lab.catalog(lab.rows(stored, {TILE: ratio}, device=h200, clock="graph"))
    asked = replace(stored, out="fp32")
    hit = answer(lab.query(asked, h200), tables, replace(POLICY, model=False))
    assert (hit.rung, hit.config) == ("epilogue", TILE if gain else ATEN)
    assert hit.speedup == pytest.approx(gain or 1.0, rel=1e-3)
    assert stand_ins(asked, "cpu") == stand_ins(stored, "cuda") == ()
