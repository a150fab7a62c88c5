"""The bounds by which an answer that was not measured is faster than ATen for certain."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.devices import H200
from kit.gpu import ALGORITHM, make

from gemmdb.cost import data
from gemmdb.cost.features import TREE_OPS
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.menus.cublaslt_nearby import activated
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup import calibration
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.bounds import FEATURES, PARTIAL_STEP, Certainty, certain, margin
from gemmdb.lookup.prediction import Estimate, Prediction, Support
from gemmdb.lookup.timings import Timings
from gemmdb.settings import Policy
from gemmdb.trust import sha256_of

OFFTABLE = Path(__file__).parents[2] / "benchmarks" / "results" / "offtable"
TILE = make("tile", block_k=128)
PROBLEM = Problem.gemm("mm", m=16, n=4096, k=4096)


def ask(problem=PROBLEM, device=H200):
    return Ask(Query(problem, device), (), Policy(), None)


def neighbour(m=16, n=4096, k=4096, aten_us=20.0):
    return Timings(PROBLEM.resized(m, n, k), H200, "table", {}, frozenset(), aten_us, verified=None)


GOOD, BESIDE = Support(3, math.log(0.8), math.log(0.8)), (neighbour(),)


def prediction(ratio=0.8, spread=0.05, support=GOOD, around=BESIDE):
    return Prediction(
        "near", {TILE: Estimate(math.log(ratio), spread, True), ATEN: Estimate(0.0, 0.05, False)}, 0.01, 20.0, None,
        "table", support=lambda config: support, around=around, corrected=True,
    )  # fmt: skip


def most(found, problem=PROBLEM, device=H200):
    return Certainty(ask(problem, device), found).most(TILE)


@pytest.mark.parametrize("activation", ["", "relu"])
@pytest.mark.parametrize("device", [H200, Device("cuda", "sm80", "Some GPU", 100, 80)])
def test_an_algorithm_of_a_library_is_never_certain(device, activation):
    """On 3,515 GEMMs of an H200, two of the six nearest agreed on the fastest in 417 cases. Of 182 of these that were
    timed, 41 were slower than ATen by 2%."""
    library = activated(Config.of("cublaslt", "matmul", **ALGORITHM), activation)
    found = prediction(ratio=0.5)
    found = replace(found, estimates={**found.estimates, library: Estimate(math.log(0.5), 0.0, True)})
    certainty = Certainty(ask(device=device), found)
    assert (certainty.sure(TILE), certainty.sure(library)) == (True, False)
    assert library not in certain(ask(device=device), found).estimates


def test_every_feature_has_a_weight_and_every_op_that_is_answered_a_constant():
    assert len(calibration.WEIGHTS) == len(FEATURES)
    assert min(calibration.WEIGHTS) >= 0
    assert {"mm", "addmm", "int_mm", "mixed_mm"} <= {*calibration.NEAR} & {*calibration.MODEL}
    assert set(calibration.MODEL) == {*data.OPS, *TREE_OPS}
    for name, digest in (("file", "sha256"), ("own", "own_sha256")):
        assert sha256_of(OFFTABLE / calibration.ORIGIN[name]) == calibration.ORIGIN[digest]


worse = st.sampled_from(
    [
        {"spread": 0.2}, {"support": Support(1, math.log(0.8), math.log(0.8))}, {"support": Support()},
        {"support": Support(3, math.log(1.1), math.log(0.8))}, {"support": Support(3, math.log(0.8), math.log(1.2))},
        {"around": (neighbour(m=64),)}, {"around": (neighbour(n=8192),)}, {"around": (neighbour(aten_us=15.0),)},
    ]
)  # fmt: skip


@given(st.floats(0.2, 0.8), worse)
def test_less_evidence_never_makes_it_surer(ratio, change):
    support = change.get("support", Support(3, math.log(ratio), math.log(ratio)))
    base = prediction(ratio, support=Support(3, math.log(ratio), math.log(ratio)))
    assert most(prediction(ratio, **{**change, "support": support})) >= most(base) - 1e-12


@given(st.floats(0.2, 1.5), st.floats(0.2, 1.5))
def test_a_faster_config_is_surer(one, other):
    fast, slow = sorted((one, other))
    support = Support(3, -math.inf, -math.inf)
    assert most(prediction(fast, support=support)) <= most(prediction(slow, support=support)) + 1e-12


@pytest.mark.parametrize("timed", [0, 1, 2])
def test_one_neighbour_is_not_enough_where_no_trees_correct_the_time(timed):
    bound = most(replace(prediction(0.3, support=Support(timed, math.log(0.3), math.log(0.3))), corrected=False))
    assert math.isinf(bound) == (timed < 2)


@given(st.floats(0.05, 2.0))
def test_the_bound_is_above_what_is_expected(ratio):
    assert most(prediction(ratio)) >= math.log(ratio) + min(calibration.NEAR["mm"], 0.0)


@pytest.mark.parametrize(("nearby_us", "less_sure"), [(10.0, math.log(2)), (20.0, 0.0), (40.0, 0.0)])
def test_aten_that_could_be_as_fast_as_nearby_makes_it_less_sure(nearby_us, less_sure):
    """The prediction expects 20 us of ATen. The neighbour has the same sizes, so the same roofline."""
    found = prediction(around=(neighbour(aten_us=nearby_us),))
    assert Certainty(ask(), found).common[2] == pytest.approx(less_sure)


def test_where_nothing_was_calibrated_two_standard_deviations_count():
    other = Device("cuda", "sm80", "Some GPU", 108, 80)
    found = prediction(0.5)
    assert most(found, device=other) == pytest.approx(math.log(0.5) + 2 * math.hypot(0.05, 0.05) + 0.01)
    assert margin(ask(device=other), TILE) == 0.0


def test_only_what_is_certain_is_left():
    sure, unsure = prediction(0.3), prediction(0.99)
    assert set(certain(ask(), sure).ratios) == {TILE, ATEN}
    left = certain(ask(), unsure)
    assert set(left.ratios) == set(left.estimates) == {ATEN}
    assert left.gains == {}


def test_an_op_that_was_never_held_out_has_no_certain_answer_of_the_model():
    assert margin(ask(Problem.gemm("grouped_mm", m=16, n=4096, k=4096, groups=8)), TILE) == math.inf
    assert margin(ask(), TILE) > 0


def test_steps_that_do_not_divide_k_make_it_less_sure():
    found, whole = prediction(), PROBLEM.resized(16, 4096, 4096 - 128)
    partial = PROBLEM.resized(16, 4096, 4096 - 64)
    assert most(found, partial) - most(found, whole) > 0.9 * PARTIAL_STEP
    assert margin(ask(partial), TILE) == pytest.approx(margin(ask(whole), TILE) + PARTIAL_STEP)
