"""Products of groups on the ladder: neighbours have as many groups, and live tuning has a menu where nothing is
known."""

from __future__ import annotations

from typing import Any

import pytest
from kit.devices import A100, H200
from kit.gpu import make

from gemmdb.kernels.config import ATEN
from gemmdb.kernels.menus.grouped import MENU
from gemmdb.key.problem import Problem
from gemmdb.lookup import answer, explain
from gemmdb.lookup.acceptance.tuning import candidates
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.saving import saving
from gemmdb.settings import Policy

BEST, OTHER = make("grouped"), make("grouped", block_n=128)


def experts(m: int = 64, groups: int = 32, **rest: Any) -> Problem:
    return Problem.gemm("grouped_mm", **{"m": m, "n": 4096, "k": 2048, "groups": groups, **rest})


@pytest.fixture
def catalog(lab):
    return around(lab)


def around(lab, **rest):
    known = {experts(m, **rest): {BEST: 0.5, OTHER: 0.7} for m in (32, 64, 128, 256)}
    return lab.catalog(lab.rows_of(known, device=H200, clock="graph"))


def test_a_measured_problem_and_neighbours_of_as_many_groups_answer(lab, catalog):
    hit = answer(lab.query(experts(), H200), catalog, Policy())
    assert (hit.rung, hit.config) == ("exact", BEST)
    hit = answer(lab.query(experts(96), H200), catalog, Policy())
    assert (hit.rung, hit.config) == ("near", BEST)
    assert hit.speedup == pytest.approx(2, rel=0.05)


def test_one_row_has_neighbours_with_more_rows(lab):
    """A group has none, one or a few rows whatever their sum is, and ATen has one kernel for all. Without such
    neighbours, ATen was served for one row at 128 experts, at 2.2x of what DeepGEMM takes."""
    known = {experts(m): {BEST: 0.5, OTHER: 0.7} for m in (2, 4)}
    hit = answer(lab.query(experts(1), H200), lab.catalog(lab.rows_of(known, device=H200, clock="graph")), Policy())
    assert (hit.rung, hit.config) == ("near", BEST)


@pytest.mark.parametrize(
    "asked",
    [
        experts(groups=33),
        experts(dtype="fp16"),
        experts(layout="nn"),
        experts(ragged="k", layout="tn"),
        experts(dtype="fp8_e4m3"),
    ],
    ids=lambda problem: problem.text,
)
def test_others_are_no_neighbours(lab, catalog, asked):
    steps = {step.rung: step for step in explain(lab.query(asked, H200), catalog, Policy())}
    assert steps["near"].hit is None
    assert "no similar problem" in steps["near"].reason
    assert "grouped_mm are not modelled" in steps["model"].reason


def test_a_range_of_rows_takes_what_holds_for_all_of_it(lab, catalog):
    hit = answer(lab.query(experts(), H200, ranges={"m": (32, 256)}), catalog, Policy())
    assert hit is not None
    assert [config for config, _ in hit.kernels({"m": (32, 256)})] == [BEST]


def asked(lab, problem: Problem, device: Any = H200) -> Ask:
    return Ask(lab.query(problem, device), (), Policy(), None)


def test_live_tuning_tries_the_menu_where_nothing_is_known(lab):
    problem = experts(groups=33)
    found = candidates(asked(lab, problem))
    assert found[:4] == list(MENU.usual(problem, H200))[:4]
    assert ATEN not in found
    # Nothing was measured there, and torch has no kernel to compare with.
    assert candidates(asked(lab, problem, A100)) == []


def test_live_tuning_tries_the_menu_of_fp8_too(lab):
    problem = experts(dtype="fp8_e4m3", fast_accum=True)
    found = candidates(asked(lab, problem))
    assert found[:4] == list(MENU.usual(problem, H200))[:4]
    assert saving(asked(lab, problem)).us > 0
    assert candidates(asked(lab, problem, A100)) == []


def test_a_sum_of_fewer_bits_is_no_neighbour(lab):
    catalog = around(lab, dtype="fp8_e4m3", fast_accum=True)
    hit = answer(lab.query(experts(96, dtype="fp8_e4m3", fast_accum=True), H200), catalog, Policy())
    assert (hit.rung, hit.config) == ("near", BEST)
    exact = {step.rung: step for step in explain(lab.query(experts(96, dtype="fp8_e4m3"), H200), catalog, Policy())}
    assert exact["near"].hit is None


def test_what_tuning_saves_is_expected_from_other_gemms_of_groups(lab):
    known = saving(asked(lab, Problem.gemm("grouped_mm", m=8, n=1536, k=2048, groups=128)))
    # Measured on an H200: ATen 28.5 us, the best kernel 16.3 us.
    assert 20 < known.aten_us < 35
    assert 10 < known.best_us < 20


@pytest.mark.parametrize("asked", ["none", "pointwise", "pointwise:fp32"])
@pytest.mark.parametrize("measured", ["none", "pointwise", "pointwise:fp32"])
def test_experts_with_and_without_a_light_epilogue_stand_in_for_each_other(lab, measured, asked):
    """Their best kernels are the same within 1% in the mean. ATen needs a kernel more for an epilogue, so that a kernel
    gains less without one."""
    if asked == measured:
        return
    catalog = around(lab, fusion=measured)
    hit = answer(lab.query(experts(fusion=asked), H200), catalog, Policy())
    assert (hit.rung, hit.config) == ("epilogue", BEST)
    assert hit.speedup == pytest.approx(2 / 1.07 if asked == "none" else 2)


def test_experts_without_an_epilogue_need_a_gain_that_holds_without_one(lab):
    """A kernel that is 10% faster than ATen and its epilogue's kernel may be slower than ATen alone."""
    for ratio, kernel in ((0.85, BEST), (0.91, None)):
        catalog = lab.catalog(lab.rows_of({experts(fusion="pointwise"): {BEST: ratio}}, device=H200, clock="graph"))
        hit = answer(lab.query(experts(), H200), catalog, Policy())
        assert (hit and hit.config) == kernel
