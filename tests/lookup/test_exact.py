"""Rung `exact`: a verdict, the policy, and nothing else decides."""

import json
import logging
import random
import sqlite3
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.devices import H200
from kit.gpu import make

from gemmdb.errors import TableError
from gemmdb.generators.files.pack import pack
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain
from gemmdb.lookup import answer, explain
from gemmdb.lookup.evidence import BESIDE_PADDING
from gemmdb.settings import Policy
from gemmdb.table.catalog import Catalog, Source
from gemmdb.table.measurement import Status
from gemmdb.table.reader import Table
from gemmdb.table.record import STEP
from gemmdb.table.verdict import decide
from gemmdb.table.writer import Store

EXACT = Policy(near=False, model=False)
FILES = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_the_verdicts_pick_is_served_with_its_evidence(lab):
    problem, fast = lab.problem(), lab.cpp()
    catalog = lab.catalog([*lab.rows(problem, {fast: 0.8}), *lab.rows(problem, {fast: 0.8}, run="again")])
    hit = answer(lab.query(problem), catalog, EXACT, lab.here)
    assert (hit.rung, hit.config, hit.table) == ("exact", fast, str(catalog.tables[0].path))
    assert hit.expected_us == pytest.approx(80.0)
    assert hit.speedup == pytest.approx(1.25)
    assert hit.evidence["runs"] == 2
    assert hit.evidence["ties"] == [fast.text]
    assert hit.evidence["margin"] == pytest.approx(0.25)
    assert hit.evidence["verified"] is True
    assert "clock=host" in hit.evidence["protocol"]
    assert json.loads(json.dumps(hit.as_dict())) == hit.as_dict()


def test_a_verdict_for_aten_is_a_hit(lab):
    problem = lab.problem()
    hit = answer(lab.query(problem), lab.catalog([*lab.rows(problem, {lab.cpp(): 1.2})]), EXACT)
    assert (hit.rung, hit.config, hit.speedup) == ("exact", ATEN, 1.0)
    assert hit.expected_us == pytest.approx(100.0)


def test_what_is_not_in_the_table_is_a_miss(lab):
    problem = lab.problem()
    catalog = lab.catalog([*lab.rows(problem, {})])
    assert answer(lab.query(problem), catalog, EXACT).rung == "exact"
    assert answer(lab.query(lab.problem(m=17)), catalog, EXACT) is None
    assert answer(lab.query(problem, replace(lab.cpu, units=4)), catalog, EXACT) is None
    assert answer(lab.query(problem, l2="hot"), catalog, EXACT) is None
    assert answer(lab.query(problem), lab.catalog(), EXACT) is None


def test_each_l2_state_has_its_own_verdict(lab):
    problem, fast = lab.problem(), lab.cpp()
    catalog = lab.catalog([*lab.rows(problem, {fast: 0.5}), *lab.rows(problem, {fast: 1.5}, l2="hot")])
    assert answer(lab.query(problem, l2="cold"), catalog, EXACT).config == fast
    assert answer(lab.query(problem, l2="hot"), catalog, EXACT).config == ATEN


def test_a_gain_below_the_policys_is_held_back_and_said(lab):
    problem, fast = lab.problem(), lab.cpp()
    catalog = lab.catalog([*lab.rows(problem, {fast: 0.9})])
    hit = answer(lab.query(problem), catalog, replace(EXACT, min_gain=0.2))
    assert (hit.config, hit.speedup) == (ATEN, 1.0)
    assert hit.expected_us == pytest.approx(100.0)
    assert hit.evidence["held_back"]["config"] == fast.text
    assert hit.evidence["held_back"]["needed"] == 0.2
    assert answer(lab.query(problem), catalog, replace(EXACT, min_gain=0.1)).config == fast


@pytest.mark.parametrize(("ratio", "served"), [(0.965, False), (0.9, True)])
def test_a_row_of_another_toolchain_class_needs_more_gain(lab, ratio, served):
    problem, fast = lab.problem(), lab.cpp()
    catalog = lab.catalog([*lab.rows(problem, {fast: ratio}, torch="2.12.0")])
    hit = answer(lab.query(problem), catalog, EXACT, lab.here)
    assert hit.config == (fast if served else ATEN)
    assert hit.evidence["verified"] is False
    assert answer(lab.query(problem), catalog, EXACT, Toolchain(torch="2.12.4")).config == fast
    assert answer(lab.query(problem), catalog, EXACT).evidence["verified"] is None


def test_the_first_table_answers_but_the_right_toolchain_comes_before_the_order(lab):
    problem, one, two = lab.problem(), lab.cpp(), lab.cpp(threads_m=2, threads_n=1, threads_k=1)
    ours, theirs = [*lab.rows(problem, {one: 0.5})], [*lab.rows(problem, {two: 0.4})]
    old = [*lab.rows(problem, {two: 0.4}, torch="2.12.0")]
    assert answer(lab.query(problem), lab.catalog(ours, theirs), EXACT, lab.here).config == one
    assert answer(lab.query(problem), lab.catalog(theirs, ours), EXACT, lab.here).config == two
    assert answer(lab.query(problem), lab.catalog(old, ours), EXACT, lab.here).config == one


def test_what_is_denied_gives_way_to_the_next_tie_then_the_next_best_then_aten(lab):
    problem = lab.problem()
    pick, tie, next_best = lab.cpp(), lab.cpp(blocks_m=1), lab.cpp(blocks_m=2)
    slower, estimate = lab.cpp(blocks_m=3), lab.cpp(blocks_m=4)
    measured = [*lab.rows(problem, {pick: 0.5, tie: 0.503, next_best: 0.7, slower: 1.3})]
    measured += [*lab.rows(problem, {estimate: 0.6}, status=Status.SLOW)][1:]
    catalog = lab.catalog(measured)

    def served(**policy):
        return answer(lab.query(problem), catalog, replace(EXACT, **policy))

    assert served().config == pick
    first = served(deny="blocks_m=0")
    assert (first.config, first.expected_us) == (tie, pytest.approx(50.3, rel=STEP))
    assert first.evidence["refused"][0]["config"] == pick.text
    assert served(deny="blocks_m=[01]").config == next_best
    assert served(deny="blocks_m=[012]").config == ATEN
    assert served(deny="packed_gemm").config == ATEN
    assert served(allow="blocks_m=2").config == next_best
    assert served(allow="triton").config == ATEN
    assert served(deny="aten").config == pick


def test_batch_invariance_rules_out_a_split_sum(lab):
    problem = lab.problem()
    split, whole = (lab.cpp(threads_m=m, threads_n=1, threads_k=k) for m, k in ((1, 2), (2, 1)))
    catalog = lab.catalog([*lab.rows(problem, {split: 0.4, lab.cpp(): 0.5, whole: 0.6})])
    assert answer(lab.query(problem), catalog, EXACT).config == split
    hit = answer(lab.query(problem), catalog, replace(EXACT, batch_invariant=True))
    assert hit.config == whole
    assert [refused["config"] for refused in hit.evidence["refused"]] == [split.text, lab.cpp().text]


def test_a_kernel_that_costs_more_to_compile_than_the_policy_allows_is_not_served(lab):
    problem = lab.problem()
    catalog = lab.catalog([*lab.rows(problem, {lab.cpp(): 0.5})])
    cost = lab.cpp().spec.cost
    assert answer(lab.query(problem), catalog, replace(EXACT, compile_cost=cost)).config == lab.cpp()
    hit = answer(lab.query(problem), catalog, replace(EXACT, compile_cost=cost - 1))
    assert hit.config == ATEN
    assert "costs more to compile" in hit.evidence["refused"][0]["reason"]


def test_a_blocking_that_the_problem_has_no_room_for_is_not_served(lab):
    problem, roomy = lab.problem(m=4), lab.cpp(blocks_m=5)
    hit = answer(lab.query(problem), lab.catalog([*lab.rows(problem, {roomy: 0.1, lab.cpp(): 0.5})]), EXACT)
    assert hit.config == lab.cpp()
    assert hit.evidence["refused"] == [{"config": roomy.text, "reason": "5 register blocks along m=4"}]


@pytest.mark.parametrize("status", [Status.WRONG, Status.CRASH])
def test_a_wrong_result_is_never_served(lab, status):
    problem, bad = lab.problem(), lab.cpp()
    measured = [*lab.rows(problem, {bad: 0.1}), *lab.rows(problem, {bad: 0.1}, run="later", status=status)]
    assert answer(lab.query(problem), lab.catalog(measured), EXACT).config == ATEN


def test_a_modelled_verdict_is_no_exact_answer(lab):
    problem = lab.problem()
    catalog = lab.catalog([*lab.rows(problem, {lab.cpp(): 0.5}, clock="model")])
    assert catalog.tables[0].verdict(problem, lab.cpu) is not None
    assert answer(lab.query(problem), catalog, EXACT) is None


def test_a_broken_table_is_skipped_with_one_warning_and_raises_in_strict_mode(lab, caplog):
    problem, fast = lab.problem(), lab.cpp()
    catalog = lab.catalog([*lab.rows(problem, {fast: 0.5})], [*lab.rows(problem, {fast: 0.8})])
    broken, sound = catalog.tables[:2]
    with sqlite3.connect(broken.path) as db:
        db.execute("UPDATE verdict SET ratio = 'nonsense'")
    db.close()
    with caplog.at_level(logging.WARNING, "gemmdb"):
        hits = [answer(lab.query(problem), catalog, EXACT) for _ in range(3)]
    assert {hit.table for hit in hits} == {str(sound.path)}
    assert len([record for record in caplog.records if str(broken.path) in record.getMessage()]) == 1
    with pytest.raises(TableError, match="verdict is malformed"):
        answer(lab.query(problem), catalog, replace(EXACT, on_miss="error"))


def test_explain_says_what_every_rung_found(lab):
    problem, fast = lab.problem(), lab.cpp()
    catalog = lab.catalog([*lab.rows(problem, {fast: 0.99})])
    steps = explain(lab.query(problem), catalog, Policy(min_gain=0.5), lab.here)
    assert [step.rung for step in steps] == ["exact", "near", "epilogue", "sku", "model"]
    assert steps[0].hit == answer(lab.query(problem), catalog, Policy(min_gain=0.5), lab.here)
    missed = explain(lab.query(lab.problem(m=500)), catalog, Policy(near=False))
    assert all(step.hit is None and step.reason for step in missed)
    assert missed[1].reason == "switched off by the policy"


RATIOS = st.lists(st.floats(0.2, 2.0), min_size=3, max_size=3)


@FILES
@given(
    ratios=RATIOS,
    again=RATIOS,
    spread=st.floats(0, 0.2),
    min_gain=st.floats(0, 0.3),
    old=st.booleans(),
    seed=st.integers(0, 9),
)
def test_an_exact_answer_is_always_the_verdict_under_the_policy(lab, ratios, again, spread, min_gain, old, seed):
    problem = lab.problem()
    configs = [lab.cpp(blocks_m=count) for count in range(3)]
    torch = "2.12.0" if old else "2.13.0"
    measured = [
        row
        for run, values in (("a", ratios), ("b", again))
        for row in lab.rows(problem, dict(zip(configs, values, strict=True)), run=run, torch=torch, spread=spread)
    ]
    verdict = decide(measured)
    random.Random(seed).shuffle(measured)
    policy = replace(EXACT, min_gain=min_gain)
    catalog = lab.catalog(measured)
    hit = answer(lab.query(problem), catalog, policy, lab.here)
    enough = verdict.speedup - 1 >= (max(min_gain, 0.05) if old else min_gain)
    assert hit.config == (verdict.pick if enough else ATEN)
    assert hit.expected_us == pytest.approx(verdict.expected_us if enough else verdict.aten_us)
    assert hit.evidence["verified"] is not old
    assert answer(lab.query(problem), catalog, policy, lab.here) == hit


@pytest.mark.parametrize("status", [Status.WRONG, Status.CRASH])
def test_what_any_table_shows_to_be_unsafe_is_served_from_none(lab, status):
    problem, fast, other = lab.problem(), lab.cpp(), lab.cpp(blocks_k=1)
    good, bad = [*lab.rows(problem, {fast: 0.5, other: 0.8})], [*lab.rows(problem, {fast: 0.5}, status=status)][1:]
    for tables in ((good, bad), (bad, good)):
        hit = answer(lab.query(problem), lab.catalog(*tables), EXACT, lab.here)
        assert hit.config == other
        assert [one["config"] for one in hit.evidence["refused"]] == [fast.text]
    near = lab.problem(m=problem.m + 1)
    good = [*lab.rows(near, {fast: 0.5})]
    assert answer(lab.query(problem), lab.catalog(good), Policy(), lab.here).config == fast
    assert answer(lab.query(problem), lab.catalog(good, bad), Policy(), lab.here).config == ATEN


@pytest.mark.parametrize("packed", [False, True])
def test_a_wrong_result_that_came_after_the_verdict_counts(lab, tmp_path, packed):
    """A writer that was killed, or that is not done, leaves verdicts that are older than its rows."""
    problem, fast, next_best = lab.problem(), lab.cpp(), lab.cpp(blocks_m=1)
    path = tmp_path / "table.db"
    with Store.open(path) as store:
        store.add([*lab.rows(problem, {fast: 0.5, next_best: 0.7})])
        store.refresh()
        if not packed:
            store.add([row for row in lab.rows(problem, {fast: 0.5}, status=Status.WRONG) if row.config == fast])
    if packed:
        pack(path, small := tmp_path / "small.db")
        path = small
    catalog = Catalog([(Source(path, "explicit"), Table.open(path))])
    assert answer(lab.query(problem), catalog, EXACT).config == (fast if packed else next_best)


@pytest.mark.parametrize(("config", "fusion", "beside"), [
    (Config.of("aten", "padded", multiple=8, output="view"), "none", True),
    (Config.of("aten", "padded", multiple=8), "none", False),
    (Config.of("aten", "padded", multiple=8), "pointwise", True),
    (Config.of("aten", "padded", multiple=64), "pointwise", False),
], ids=str)  # fmt: skip
def test_the_evidence_says_whether_default_modes_padding_was_measured(lab, config, fusion, beside):
    """A slow one counts too. Of a GEMM that default mode never pads, it says nothing."""
    for ratio in (0.5, 1.5):
        for k, wanted in ((4093, beside), (4096, None)):
            problem = Problem.gemm("mm", m=256, n=4096, k=k, fusion=fusion)
            rows = list(lab.rows(problem, {make("tile"): 0.9} | ({config: ratio} if k == 4093 else {}), device=H200))
            hit = answer(lab.query(problem, H200), lab.catalog(rows), Policy())
            assert (hit.rung, hit.evidence.get(BESIDE_PADDING)) == ("exact", wanted)
