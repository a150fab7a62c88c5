"""Ops with trees of their own: answered by what was measured of themselves, never by what was measured of other ops,
classes or numerics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from kit.devices import A100, H100, H200
from kit.gpu import make

import gemmdb
from gemmdb.kernels.config import Config
from gemmdb.key.layout import Layout
from gemmdb.key.operands import Operand
from gemmdb.key.problem import Problem
from gemmdb.lookup import answer, explain
from gemmdb.lookup.acceptance.tuning import candidates
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.ranking import rank
from gemmdb.settings import Policy


def bmm(batch: int = 64, m: int = 64, n: int = 256, k: int = 256, **rest: object) -> Problem:
    return Problem.gemm("bmm", batch=batch, m=m, n=n, k=k, **rest)  # type: ignore[arg-type]


def scaled(m: int = 512, n: int = 4096, k: int = 4096, **rest: object) -> Problem:
    return Problem.gemm("scaled_mm", m=m, n=n, k=k, **rest)  # type: ignore[arg-type]


TILE = make("tile", block_m=64, block_n=128)
_FP8 = {"block_m": 128, "block_n": 128, "block_k": 128, "group_m": 8, "stages": 3, "warps": 4}


@dataclass(frozen=True)
class Case:
    """`problem` makes a problem of the op. `templates`: configs of Inductor's templates that are legal for the default
    one. `around`: further values of M that the table has where another family is asked about. `simpler`: another op,
    whose rows lead to no candidates."""

    problem: Callable[..., Problem]
    templates: tuple[Config, ...]
    around: tuple[int, ...]
    simpler: str


CASES = {
    "bmm": Case(
        bmm,
        (Config.of("triton", "inductor_bmm", block_m=64, block_n=64, block_k=64, group_m=8, stages=3, warps=4),),
        (),
        "mm",
    ),
    "scaled_mm": Case(
        scaled,
        (Config.of("triton", "inductor_mm", **_FP8), Config.of("triton", "inductor_scaled_tma", **_FP8)),
        (256, 384, 768, 1024),
        "int_mm",
    ),
}
TEMPLATES = [pytest.param(one, config, id=config.name) for one in CASES.values() for config in one.templates]


@pytest.mark.parametrize(("case", "config"), TEMPLATES)
def test_the_same_problem_is_answered_exactly(lab, case, config):
    problem = case.problem()
    catalog = lab.catalog([*lab.rows(problem, {config: 0.5}, device=H200)])
    hit = answer(lab.query(problem, H200), catalog, Policy())
    assert (hit.rung, hit.config, hit.speedup) == ("exact", config, 2.0)


OTHERS = {
    "bmm": [
        bmm(batch=1 << 14), bmm(m=1), bmm(layout="nn"), bmm(dtype="fp16"),
        replace(bmm(), b=Operand("bf16", Layout("col", 8, "broadcast"))),
        replace(bmm(), a=Operand("bf16", Layout("row-padded", 8, "interleaved"))),
        replace(bmm(), a=Operand("bf16", Layout("row", 4))),
    ],
    "scaled_mm": [
        scaled(scales="row"), scaled(fast_accum=True), scaled(dtype="fp8_e5m2", weight_dtype="fp8_e4m3"),
        scaled(out_dtype="fp16"), scaled(bias="1d"),
        replace(scaled(), a=Operand("fp8_e4m3", Layout("row-padded", 16))),
        replace(scaled(), b=Operand("fp8_e4m3", Layout("col", 8))),
    ],
}  # fmt: skip


@pytest.mark.parametrize("other", [one for every in OTHERS.values() for one in every], ids=lambda problem: problem.text)
def test_nothing_else_is(lab, other):
    case = CASES[other.op]
    problems = [case.problem(), *(case.problem(m=m) for m in case.around)]
    rows = [row for one in problems for row in lab.rows(one, {case.templates[-1]: 0.5}, device=H200)]
    assert answer(lab.query(other, H200), lab.catalog(rows), Policy(model=False)) is None


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def test_the_model_says_nothing_on_other_archs(lab, case):
    problem = case.problem()
    steps = {step.rung: step.reason for step in explain(lab.query(problem, A100), lab.catalog([]), Policy())}
    assert steps["model"] == f"GEMMs of the op {problem.op} are not modelled on sm80"


@pytest.mark.parametrize("problem", [bmm(), bmm(m=8, k=4096), scaled(m=16)], ids=str)
def test_live_tuning_tries_what_the_model_expects_and_what_was_the_best_of_similar_gemms_in_turns(lab, problem):
    alone = Ask(lab.query(problem, H200), (), Policy(), None)
    ranked = [one.config for one in rank(alone, 16).best]
    assert candidates(alone) == ranked
    rows = lab.rows(replace(problem, m=problem.m + 8, fusion="pointwise"), {ranked[5]: 0.6}, device=H200)
    found = candidates(replace(alone, tables=lab.catalog(rows).tables))
    assert found[:4] == [ranked[0], ranked[5], *ranked[1:3]]
    assert not any(config.rejection(problem, H200) for config in found)


@pytest.mark.parametrize(
    "problem",
    [bmm(dtype="fp32"), bmm(k=255), replace(bmm(), a=Operand("bf16", Layout("row", 4)))],
    ids=lambda p: p.text,
)
def test_live_tuning_tries_what_was_the_best_of_similar_gemms_of_the_op(lab, problem):
    simpler = Problem.gemm(CASES[problem.op].simpler, m=problem.m, n=problem.n, k=problem.n)
    alone = Ask(lab.query(problem, H200), (), Policy(), None)
    assert candidates(alone) == [], "without rows it is left to the menu"
    template = CASES[problem.op].templates[0]
    beside = replace(problem, m=problem.m + 8)
    rows = [*lab.rows(simpler, {TILE: 0.5}, device=H200), *lab.rows(beside, {template: 0.6}, device=H200)]
    found = candidates(replace(alone, tables=lab.catalog(rows).tables))
    assert template in found
    assert not any(config.rejection(problem, H200) for config in found)


def test_another_sku_answers_from_its_own_rows(lab, case):
    problem, template = case.problem(), case.templates[0]
    catalog = lab.catalog([*lab.rows(problem, {template: 0.5}, device=H100)])
    assert answer(lab.query(problem, H200), catalog, Policy(sku=False)) is None
    hit = answer(lab.query(problem, H200), catalog, Policy(sku=True))
    assert (hit.rung, hit.config) == ("sku", template)


@pytest.mark.parametrize(("case", "config"), TEMPLATES)
def test_a_template_is_generated_for_fixed_sizes(case, config):
    assert "template is generated for fixed sizes" in str(config.rejection(case.problem(), H200, ("m",)))


@pytest.mark.parametrize(
    ("op", "problem", "device", "reason"),
    [
        ("bmm", bmm(batch=65_536, m=1, n=1), H200, "room for 65535 matrices"),
        ("bmm", bmm(batch=1), H200, "a batch of one"),
        ("bmm", bmm(k=1), H200, "where K is 1"),
        ("bmm", bmm(batch=0), H200, "size zero"),
        ("bmm", bmm(m=0), H200, "size zero"),
        ("bmm", bmm(batch=512, m=4096, n=16, k=1024), H200, "within an operand"),
        ("bmm", bmm(batch=512, m=4096, n=1024, k=16), H200, "within the output"),
        ("bmm", bmm(dtype="fp64"), H200, "bf16, fp16, int8, and fp32"),
        ("bmm", replace(bmm(), b=Operand("bf16", Layout("strided", 1))), H200, "no row start"),
        ("bmm", Problem.gemm("mm", m=64, n=64, k=64), H200, "does not solve mm"),
        ("scaled_mm", scaled(), A100, "sm80 cannot multiply fp8"),
        ("scaled_mm", scaled(dtype="fp8_e5m2"), H200, "two e5m2"),
        ("scaled_mm", scaled(k=4088), H200, "multiples of 16"),
        ("scaled_mm", scaled(n=4088), H200, "multiples of 16"),
        ("scaled_mm", replace(scaled(), a=Operand("fp8_e4m3", Layout("row-padded", 8))), H200,
         "start at multiples of 16 bytes"),
        ("scaled_mm", replace(scaled(bias="1d"), out="fp16"), H200, "a bias of bf16 is not added to fp16"),
        ("scaled_mm", scaled(bias="1d", out_dtype="fp32"), H200, "a bias of fp32 is not added to fp32"),
        ("scaled_mm", scaled(k=16), H200, "Triton fails where K is 16"),
        ("scaled_mm", scaled(m=0), H200, "size zero"),
        ("scaled_mm", scaled(m=65536, n=32768), H200, "within the output"),
        ("scaled_mm", Problem.gemm("bmm", batch=2, m=64, n=64, k=64), H200, "does not solve bmm"),
    ],
)  # fmt: skip
def test_what_no_template_can_run_says_why(op, problem, device, reason):
    case = CASES[op]
    for config in case.templates:
        assert reason in str(config.rejection(problem, device))
        assert config.rejection(case.problem(), H200) is None


_FAST = {"scales": "row", "fast_accum": True}


@pytest.mark.parametrize(
    ("problem", "kernel", "gain"),
    [
        (bmm(512, 128, 128, 64, layout="nt"), "inductor_bmm", 1.15),
        (bmm(32, 2048, 2048, 128, layout="nt"), "default", 1.0),
        (scaled(1, 4096, 14336, **_FAST), "gemv", 2.0),
        (scaled(16, 4096, 14336, **_FAST), "narrow", 1.7),
        (scaled(2048, 28672, 4096, **_FAST), "default", 1.0),
    ],
    ids=str,
)
def test_the_shipped_table_has_them(monkeypatch, tmp_path, problem, kernel, gain):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    hit = gemmdb.lookup(problem, "NVIDIA H200")
    assert (hit.rung, hit.config.kernel) == ("exact", kernel)
    assert hit.speedup >= gain
