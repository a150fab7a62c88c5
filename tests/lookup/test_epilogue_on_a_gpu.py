"""On a GPU: what rungs `epilogue` and `model` charge for exponentials, transposed stores and a bias that no row has."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from kit.devices import known
from kit.gpu import make

from benchmarks.h200 import stores
from gemmdb.cost.roofline import TRANSPOSED, extra_us
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem
from gemmdb.lookup import answer
from gemmdb.lookup.acceptance.model import model
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.other_epilogue import stand_ins
from gemmdb.settings import Policy

ROOT = Path(__file__).parents[2]
POLICY = Policy(on_miss="aten")
TILE = make("tile", block_m=64, block_n=128)
H200 = known("NVIDIA H200")
LIGHT = Problem.gemm("addmm", m=25088, n=512, k=128, fusion="pointwise")
"""A layer of Swin and of ConvNeXt. With a GELU, the kernel that the model would take made both slower."""


pytestmark = pytest.mark.usefixtures("no_shipped_tables")


@pytest.mark.parametrize(
    ("fusion", "aten_us", "served"),
    [
        ("pointwise:math", 100.0, 100 / (80 + 2.92)),
        # Of a short GEMM, an exact GELU takes more than relu saved.
        ("pointwise:math", 12.0, None),
        ("pointwise:reads1", 12.0, 1 / 0.8),
        ("pointwise:transposed", 12.0, 1 / (0.8 * 1.05)),
        ("pointwise:reads1:permuted", 12.0, 1 / 0.8),
        ("pointwise:math:transposed", 100.0, 100 / (80 * 1.05 + 2.92)),
    ],
)
def test_exponentials_and_transposed_stores_are_charged_on_a_gpu(lab, fusion, aten_us, served):
    problem = Problem.gemm("mm", m=1024, n=3072, k=768)
    tables = lab.catalog([
        row for word, ratio in (("pointwise", 0.8), ("none", 1.0))
        for row in lab.rows(replace(problem, fusion=word), {TILE: ratio}, aten_us=aten_us, device=H200, clock="graph")
    ])  # fmt: skip
    hit = answer(lab.query(replace(problem, fusion=fusion), H200), tables, replace(POLICY, model=False))
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
def test_on_a_gpu_rows_without_the_bias_answer(lab, fusion, ratio, gain):
    asked = Problem.gemm("addmm", m=1024, n=3072, k=768, fusion=fusion)
    alone = replace(asked, op="mm", bias=None)
    tables = lab.catalog([
        *lab.rows(alone, {TILE: ratio}, device=H200, clock="graph"),
        *lab.rows(replace(asked, fusion="none"), {TILE: 1.0}, device=H200, clock="graph"),
    ])  # fmt: skip
    hit = answer(lab.query(asked, H200), tables, replace(POLICY, model=False))
    assert (hit.rung, hit.config == ATEN) == ("epilogue", gain is None)
    assert hit.speedup == pytest.approx(gain or 1.0, rel=1e-3)
    slow_alone = lab.catalog([
        *lab.rows(alone, {TILE: ratio}, device=H200, clock="graph"),
        *lab.rows(replace(asked, fusion="none"), {TILE: 1.1}, device=H200, clock="graph"),
    ])  # fmt: skip
    left = answer(lab.query(asked, H200), slow_alone, replace(POLICY, model=False))
    assert left is None if fusion == "pointwise" else left.config == ATEN


@pytest.mark.parametrize(("ratio", "gain"), [(0.6, 1 / (0.6 * 1.14)), (0.9, None)])
def test_a_scaled_integer_gemm_that_stays_fp32_has_the_rows_of_one_in_bf16(lab, ratio, gain):
    """Of torchao's int8 linear with SiLU behind it, where Inductor drops the cast to bf16 between them."""
    stored = Problem.gemm("int_mm", m=1024, n=3072, k=768, fusion="scale")
    tables = lab.catalog(lab.rows(stored, {TILE: ratio}, device=H200, clock="graph"))
    asked = replace(stored, out="fp32")
    hit = answer(lab.query(asked, H200), tables, replace(POLICY, model=False))
    assert (hit.rung, hit.config) == ("epilogue", TILE if gain else ATEN)
    assert hit.speedup == pytest.approx(gain or 1.0, rel=1e-3)
    assert stand_ins(asked, "cpu") == stand_ins(stored, "cuda") == ()


def step(lab, problem):
    return model(Ask(lab.query(problem, H200), (), Policy(on_miss="aten"), None))


def test_an_exact_gelu_of_a_large_output_is_no_gain(lab):
    assert step(lab, LIGHT).hit.speedup > 1.3
    assert step(lab, replace(LIGHT, fusion="pointwise:math")).hit is None


def test_what_the_epilogue_costs_is_expected(lab):
    short = replace(LIGHT, m=8, n=1024, k=4096)
    light, math = (step(lab, replace(short, fusion=word)).hit for word in ("pointwise", "pointwise:math"))
    assert light.config == math.config
    assert math.expected_us == pytest.approx(
        light.expected_us + extra_us(replace(short, fusion="pointwise:math"), H200, light.expected_us)
    )


def test_a_light_epilogue_costs_nothing_beyond_itself_and_a_transposed_store_a_share():
    assert extra_us(LIGHT, H200, 10.0) == 0
    assert extra_us(replace(LIGHT, fusion="none"), H200, 10.0) == 0
    assert extra_us(replace(LIGHT, fusion="pointwise:transposed"), H200, 10.0) == pytest.approx(10 * TRANSPOSED)
    assert extra_us(replace(LIGHT, fusion="pointwise:math"), H200, 10.0) == pytest.approx(11.9, abs=0.1)


@pytest.mark.parametrize("fusion", ["none", "pointwise:math"])
def test_a_frozen_weight_has_the_rows_of_one_that_is_an_input(lab, fusion):
    """Freezing makes the weight a constant, which no kernel of a GPU packs. No table has rows of that."""
    problem = Problem.gemm("mm", m=64, n=3072, k=768, fusion=fusion)
    frozen, policy = replace(problem, constant=True), replace(POLICY, model=False)
    for ratio, config in ((0.5, TILE), (1.5, ATEN)):
        tables = lab.catalog(lab.rows(problem, {TILE: ratio}, aten_us=20.0, device=H200, clock="graph"))
        own, hit = (answer(lab.query(one, H200), tables, policy) for one in (problem, frozen))
        assert (own.rung, hit.rung, hit.config) == ("exact", "epilogue", config)
        assert (hit.expected_us, hit.speedup) == (own.expected_us, own.speedup), "nothing is charged"
    cpu = lab.catalog(lab.rows(problem, {TILE: 0.5}))
    assert answer(lab.query(frozen), cpu, policy) is None, "kernels of a CPU pack it"


def test_a_frozen_integer_weight_has_none(lab):
    """Its cast is folded, so that ATen multiplies a weight of 16 bits."""
    problem = Problem.gemm("mixed_mm", m=16, n=4096, k=4096)
    tables = lab.catalog(lab.rows(problem, {TILE: 0.5}, device=H200, clock="graph"))
    assert answer(lab.query(problem, H200), tables, POLICY).rung == "exact"
    assert answer(lab.query(replace(problem, constant=True), H200), tables, replace(POLICY, model=False)) is None
