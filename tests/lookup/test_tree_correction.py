"""What trees add to a prediction from neighbours, and the one order of what live tuning should try."""

import math
from dataclasses import replace

import pytest

from gemmdb.devices import registry
from gemmdb.kernels.config import ATEN
from gemmdb.key.device import Device
from gemmdb.key.operands import Numerics
from gemmdb.key.problem import Problem
from gemmdb.lookup import answer
from gemmdb.lookup.acceptance.near import near
from gemmdb.lookup.acceptance.tuning import TUNING_FACTOR, candidates
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.from_neighbours import predict
from gemmdb.lookup.prediction import Prediction
from gemmdb.lookup.ranking import TREE_CANDIDATES, rank, uncovered
from gemmdb.lookup.similar import usual
from gemmdb.lookup.tree_correction import ADDED_CONFIGS, ENOUGH_GROUPS, TREE_SPREAD, TREE_SPREAD_BESIDE, corrected
from gemmdb.settings import Policy
from gemmdb.table.measurement import Status

GPU = Device("cuda", "sm90", "Some GPU", 132, 80)
OLD = Device("cuda", "sm80", "Some older GPU", 108, 80)
KNOWN = Problem.gemm("mm", m=16, n=2048, k=4096)
ASKED = KNOWN.resized(16, 2560, 5120)


@pytest.fixture
def asks(lab, no_shipped_tables):
    """Asks about ASKED with one measured neighbour, on which the model's first configs were timed or failed."""

    def asks(device=GPU, status=Status.OK, count=3, problem=ASKED, known=(KNOWN,), **policy):
        bare = Ask(lab.query(KNOWN, device), (), Policy(**policy), None)
        configs = [one.config for one in rank(bare, count).best]
        ratios = {config: 0.5 + 0.05 * place for place, config in enumerate(configs)}
        how = {"device": device, "clock": "graph", "status": status, "aten_us": 12.0}
        rows = [row for one in known for row in lab.rows(one, ratios, **how)]
        return Ask(lab.query(problem, device), tuple(lab.catalog(rows).tables), Policy(**policy), None), configs

    return asks


def test_candidates_that_no_neighbour_timed_are_added(asks):
    ask, configs = asks()
    found = predict(ask)
    better = corrected(ask, found)
    added = set(better.ratios) - set(found.ratios)
    assert 0 < len(added) <= ADDED_CONFIGS
    assert {better.estimates[config].spread for config in added} == {TREE_SPREAD}
    assert added <= set(better.gains)
    assert set(configs[:1]) <= set(found.ratios) < set(better.ratios)
    assert better.evidence["corrected"] is True
    assert better.ratios[ATEN] == 1.0


def test_two_opinions_lie_between_both_and_are_surer(asks):
    ask, configs = asks(count=1)
    found = predict(ask)
    better = corrected(ask, found)
    assert better.estimates[configs[0]].spread < min(found.estimates[configs[0]].spread, TREE_SPREAD)
    # With one config the levels are equal by definition, so the trees change ATen's ratio alone.
    assert better.ratios[configs[0]] != found.ratios[configs[0]]
    assert better.aten_us != found.aten_us


def test_a_neighbour_with_the_same_n_and_k_counts_more(asks):
    """Its ratios are moved less by the trees, and what only they propose is less sure."""
    ask, configs = asks(problem=KNOWN.resized(24, KNOWN.n, KNOWN.k))
    found = predict(ask)
    assert found.beside
    assert not predict(asks()[0]).beside
    near_one, far_one = corrected(ask, found), corrected(ask, replace(found, beside=False))
    assert {near_one.estimates[config].spread for config in set(near_one.ratios) - set(found.ratios)} == {
        TREE_SPREAD_BESIDE
    }
    for config in set(found.ratios) & set(configs[:2]):
        moved = [abs(math.log(one.ratios[config] / found.ratios[config])) for one in (near_one, far_one)]
        assert moved[0] < moved[1]
        assert near_one.estimates[config].spread > far_one.estimates[config].spread


@pytest.mark.parametrize(
    ("rows", "others", "needless"),
    [(12, [16, 8], True), (12, [16, 40], False), (17, [16, 8], False), (40, [48, 64], True), (33, [32, 64], False)],
)
def test_neighbours_of_the_same_class_of_m_that_timed_enough_make_other_candidates_needless(
    asks, rows, others, needless
):
    """At 16 rows, tiles of 16 are the best. They waste half if there are 17."""
    measured = [KNOWN.resized(m, KNOWN.n, KNOWN.k) for m in others]
    ask, _ = asks(problem=KNOWN.resized(rows, KNOWN.n, KNOWN.k), count=2 * ENOUGH_GROUPS, known=measured)
    found = predict(ask)
    assert found.beside
    assert (set(corrected(ask, found).estimates) == set(found.estimates)) == needless
    assert set(corrected(ask, found, 2).estimates) > set(found.estimates)


def test_what_was_wrong_nearby_is_not_brought_back(asks):
    ask, configs = asks(status=Status.WRONG, count=TREE_CANDIDATES)
    found = predict(ask)
    assert isinstance(found, Prediction)
    better = corrected(replace(ask), found)
    assert not set(configs) & set(better.ratios)
    assert not set(configs) & set(candidates(ask))


@pytest.mark.parametrize("case", [{"device": OLD}, {"problem": Problem.gemm("mm", m=16, n=2560, k=4093)}], ids=str)
def test_where_trees_have_no_say_the_forecast_is_the_neighbours(asks, case):
    ask, _ = asks(**case)
    found = predict(ask)
    if isinstance(found, Prediction):
        assert corrected(ask, found) is found
    else:
        assert "measured near" in found.reason


def test_a_hit_says_that_trees_had_a_say_and_states_a_loss(asks):
    ask, _ = asks()
    hit = near(ask).hit
    assert hit.rung == "near"
    assert hit.evidence["corrected"] is True
    assert 0 < hit.evidence["expected_loss"] <= Policy().near_loss
    plain = near(replace(ask, policy=Policy(model=False)))
    assert plain.hit is None or "corrected" not in plain.hit.evidence


def test_proposals_are_in_the_order_of_the_forecast_and_then_the_models(asks):
    ask, _ = asks(compile_cost=9)
    ask = replace(ask, policy=ask.policy.without_cutlass)  # As live tuning asks.
    found = candidates(ask)
    better = corrected(ask, predict(ask), TUNING_FACTOR)
    assert found[: len(better.gains) - (ATEN in better.gains)] == better.candidates(len(better.gains))
    assert len(found) == len(set(found)) >= ADDED_CONFIGS
    assert ATEN not in found
    assert all(config.spec.cost <= 9 for config in found)


def test_without_trees_the_two_are_taken_in_turns(asks):
    ask, _ = asks(device=OLD)
    measured = predict(ask).candidates(9)
    modelled = [one.config for one in rank(ask, TREE_CANDIDATES * TUNING_FACTOR).best]
    found = candidates(ask)
    assert found[0] == measured[0]
    assert set(found) == {*measured, *modelled}
    assert found[1] in (modelled[0], modelled[1], measured[1])


def test_without_neighbours_the_model_proposes(lab):
    device = registry.find("sm100")
    ask = Ask(lab.query(ASKED, device), (), Policy(), None)
    assert candidates(ask) == [one.config for one in rank(ask, TREE_CANDIDATES * TUNING_FACTOR).best]
    assert candidates(Ask(lab.query(lab.problem()), (), Policy(), None)) == []
    assert answer(lab.query(lab.problem()), lab.catalog(), Policy()) is None


@pytest.mark.parametrize(
    "problem",
    [
        Problem.gemm("mm", m=64, n=2560, k=4093),
        Problem.gemm("addmm", m=2048, n=4096, k=4001),
        Problem.gemm("mm", m=512, n=2048, k=2048, dtype="fp32", tf32=True),
        Problem.gemm("mm", m=8, n=2048, k=2048, dtype="fp32"),
    ],
    ids=lambda problem: problem.text[:30],
)
def test_what_the_model_does_not_cover_is_tried_as_others_of_its_kind(lab, problem):
    ask = Ask(lab.query(problem, GPU), (), Policy(), None)
    assert uncovered(problem)
    found = candidates(ask)
    assert found == usual(ask)
    assert 1 <= len(found) <= 8
    assert all(config.rejection(problem, GPU) is None for config in found)
    assert usual(replace(ask, policy=Policy(deny="triton|padded"))) == []
    assert usual(Ask(lab.query(problem, OLD), (), Policy(), None)) == []


def test_of_kinds_that_nobody_measured_nothing_is_usual(lab):
    empty = Problem.gemm("mm", m=0, n=2560, k=4093)
    as_bf16 = replace(Problem.gemm("mm", m=8, n=64, k=64, dtype="fp32"), numerics=Numerics("bf16", "fp32"))
    for problem in (empty, as_bf16):
        assert usual(Ask(lab.query(problem, GPU), (), Policy(), None)) == []
