"""Products of fp8 operands on the ladder: answered by what was measured of themselves or near them, never by what was
measured of other ops, classes or numerics."""

from dataclasses import replace

import pytest
from kit.devices import H200

import gemmdb
from gemmdb.hit import Hit
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.legality import illegal
from gemmdb.key.device import Device
from gemmdb.key.layout import Layout
from gemmdb.key.operands import Operand
from gemmdb.key.problem import Problem
from gemmdb.ladder import explain, lookup
from gemmdb.ladder.ask import Ask
from gemmdb.ladder.candidates import candidates
from gemmdb.settings import Policy

VALUES = {"block_m": 128, "block_n": 128, "block_k": 128, "group_m": 8, "stages": 3, "warps": 4}
TEMPLATE = Config.of("triton", "inductor_mm", **VALUES)
MAPPED = Config.of("triton", "inductor_scaled_tma", **VALUES)
NARROW = Config.of(
    "triton",
    "narrow",
    block_m=16,
    block_n=64,
    block_k=128,
    split_k=1,
    swap=1,
    stagger=0,
    rows="mask",
    dequant="cast",
    warps=4,
    stages=5,
)
GEMV = Config.of("triton", "gemv", block_n=8, block_k=256, unroll=1, dequant="cast", warps=4, stages=3)


def scaled(m: int = 512, n: int = 4096, k: int = 4096, **rest: object) -> Problem:
    return Problem.gemm("scaled_mm", m=m, n=n, k=k, **rest)  # type: ignore[arg-type]


@pytest.fixture
def ask(lab):
    """A lookup among the given rows."""

    def find(problem, rows, **query) -> Hit | None:
        return lookup(lab.query(problem, H200, **query), lab.catalog(rows), Policy())

    return find


def around(lab, times, **rest):
    """Rows of the problems around M = 512."""
    return [row for m in (256, 384, 768, 1024) for row in lab.rows(scaled(m=m, **rest), times, device=H200)]


def test_the_same_problem_is_answered_exactly(lab, ask):
    for config in (TEMPLATE, MAPPED):
        hit = ask(scaled(), [*lab.rows(scaled(), {config: 0.5}, device=H200)])
        assert (hit.rung, hit.config, hit.speedup) == ("exact", config, 2.0)


OTHERS = [
    scaled(scales="row"), scaled(fast_accum=True), scaled(dtype="fp8_e5m2", weight_dtype="fp8_e4m3"),
    scaled(out_dtype="fp16"), scaled(bias="1d"), scaled(fusion="pointwise"),
    replace(scaled(), a=Operand("fp8_e4m3", Layout("row-padded", 16))),
    replace(scaled(), b=Operand("fp8_e4m3", Layout("col", 8))),
]  # fmt: skip


@pytest.mark.parametrize("other", OTHERS, ids=lambda problem: problem.text)
def test_no_other_family_is(lab, ask, other):
    rows = [*lab.rows(scaled(), {MAPPED: 0.5}, device=H200), *around(lab, {MAPPED: 0.5})]
    assert ask(other, rows) is None


def test_near_sizes_answer(lab, ask):
    hit = ask(scaled(), around(lab, {MAPPED: 0.5}))
    assert (hit.rung, hit.config) == ("near", MAPPED)
    assert hit.speedup == pytest.approx(2, rel=0.1)
    assert ask(scaled(), around(lab, {})).config == ATEN


def test_a_matrix_vector_product_is_near_those_alone(lab, ask):
    fast = {"fast_accum": True, "scales": "row", "out_dtype": "fp16"}
    rows = [row for n in (3072, 5120) for row in lab.rows(scaled(1, n, **fast), {GEMV: 0.5}, device=H200)]
    assert ask(scaled(1, **fast), rows).config == GEMV
    assert ask(scaled(2, **fast), rows) is None


def test_a_range_is_served_by_a_kernel_of_any_number_of_rows(lab, ask):
    fast = {"fast_accum": True}
    rows = [row for m in (2, 4, 8, 16) for row in lab.rows(scaled(m, **fast), {NARROW: 0.5}, device=H200)]
    hit = ask(scaled(8, **fast), rows, ranges={"m": (2, 16)})
    assert hit.config == NARROW
    assert "accumulation" in str(illegal(NARROW, scaled(8), H200))


def test_the_model_says_nothing(lab):
    steps = explain(lab.query(scaled(), H200), lab.catalog([]), Policy())
    assert {step.rung: step.reason for step in steps}["model"] == "products of the op scaled_mm are not modelled"
    catalog = lab.catalog([*lab.rows(Problem.gemm("int_mm", m=512, n=4096, k=4096), {}, device=H200)])
    for problem in (scaled(), scaled(k=4000, m=7)):
        assert candidates(Ask(lab.query(problem, H200), catalog.tables, Policy(), None)) == []


def test_a_range_is_atens(lab, ask):
    every = [row for m in (256, 512, 1024) for row in lab.rows(scaled(m=m), {MAPPED: 0.5}, device=H200)]
    hit = ask(scaled(), every, ranges={"m": (256, 1024)})
    assert hit.config == ATEN
    for config in (TEMPLATE, MAPPED):
        assert "template is generated for fixed sizes" in str(illegal(config, scaled(), H200, ("m",)))


def test_another_sku_answers_from_its_own_rows(lab):
    h100 = Device("cuda", "sm90", "NVIDIA H100 80GB HBM3", 132, 79)
    catalog = lab.catalog([*lab.rows(scaled(), {TEMPLATE: 0.5}, device=h100)])
    assert lookup(lab.query(scaled(), H200), catalog, Policy()) is None
    hit = lookup(lab.query(scaled(), H200), catalog, Policy(sku=True))
    assert (hit.rung, hit.config) == ("sku", TEMPLATE)


A100 = Device("cuda", "sm80", "NVIDIA A100-SXM4-80GB", 108, 80)


@pytest.mark.parametrize(
    ("problem", "device", "reason"),
    [
        (scaled(), A100, "sm80 cannot multiply fp8"),
        (scaled(dtype="fp8_e5m2"), H200, "two e5m2"),
        (scaled(k=4088), H200, "multiples of 16"),
        (scaled(n=4088), H200, "multiples of 16"),
        (replace(scaled(), a=Operand("fp8_e4m3", Layout("row-padded", 8))), H200, "start at multiples of 16 bytes"),
        (replace(scaled(bias="1d"), out="fp16"), H200, "a bias of bf16 is not added to fp16"),
        (scaled(bias="1d", out_dtype="fp32"), H200, "a bias of fp32 is not added to fp32"),
        (scaled(k=16), H200, "Triton fails where K is 16"),
        (scaled(m=0), H200, "size zero"),
        (scaled(m=65536, n=32768), H200, "within the output"),
        (Problem.gemm("bmm", batch=2, m=64, n=64, k=64), H200, "does not solve bmm"),
    ],
)
def test_what_no_template_can_run_says_why(problem, device, reason):
    for config in (TEMPLATE, MAPPED):
        assert reason in (illegal(config, problem, device) or "")
        assert illegal(config, scaled(), H200) is None


@pytest.mark.parametrize(
    ("config", "problem", "reason"),
    [
        (MAPPED, scaled(bias="1d"), "takes no bias"),
        (MAPPED, scaled(m=1), "size of 1"),
        (Config.of("triton", "inductor_scaled_tma", **{**VALUES, "warps": 2}), scaled(), "fewer than 4 warps"),
        (Config.of("triton", "inductor_mm", **{**VALUES, "block_k": 16}), scaled(), "32 fp8 of K at once"),
        (Config.of("triton", "inductor_mm", **{**VALUES, "stages": 8}), scaled(), "do not fit into shared memory"),
        (Config.of("triton", "inductor_persistent_tma", **VALUES), scaled(), "does not solve scaled_mm"),
    ],
)  # fmt: skip
def test_what_one_of_them_cannot_run_says_why(config, problem, reason):
    assert reason in (illegal(config, problem, H200) or "")


@pytest.mark.parametrize(
    ("config", "problem", "reason"),
    [
        (NARROW, scaled(), "the fast accumulation"),
        (NARROW, scaled(fast_accum=True), None),
        (Config.of(NARROW.backend, NARROW.kernel, **{**NARROW.values, "swap": 0}), scaled(), None),
        (Config.of(NARROW.backend, NARROW.kernel, **{**NARROW.values, "warps": 2}), scaled(), None),
        (Config.of(NARROW.backend, NARROW.kernel, **{**NARROW.values, "block_k": 16}), scaled(fast_accum=True),
         "32 fp8_e4m3 of K at once"),
        (NARROW, scaled(k=4088, fast_accum=True), "multiples of 16"),
        (GEMV, scaled(8), None),
        (GEMV, scaled(9), "more than 8"),
        (GEMV, scaled(1, dtype="fp8_e5m2"), "two e5m2"),
    ],
)  # fmt: skip
def test_what_our_kernels_multiply(config, problem, reason):
    found = illegal(config, problem, H200)
    assert found is None if reason is None else reason in found
    assert "sm80 cannot multiply fp8" in illegal(config, problem, A100)


@pytest.mark.parametrize(
    ("m", "n", "k", "kernels", "gain"),
    [(1, 4096, 14336, {"gemv"}, 2.0), (16, 4096, 14336, {"narrow"}, 1.7), (2048, 28672, 4096, {"default"}, 1.0)],
)
def test_the_shipped_table_has_them(monkeypatch, tmp_path, m, n, k, kernels, gain):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    hit = gemmdb.lookup(scaled(m, n, k, scales="row", fast_accum=True, device="NVIDIA H200"))
    assert hit.rung == "exact"
    assert hit.config.kernel in kernels
    assert hit.speedup >= gain
