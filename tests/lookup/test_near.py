"""Rung `near`: predicted from all timings of the neighbours, bounded, and declined when unsure."""

import json
import re
from dataclasses import replace

import pytest

from gemmdb.kernels.config import ATEN
from gemmdb.lookup import answer, explain, from_neighbours
from gemmdb.lookup.timings import timings_of
from gemmdb.settings import Policy
from gemmdb.table.measurement import Status
from gemmdb.table.record import STEP

POLICY = Policy()


def at(lab, times, **where):
    """A catalog of one table: `times` maps values of M to the ratios of configs."""
    return lab.catalog(lab.rows_of({lab.problem(m=m): ratios for m, ratios in times.items()}, **where))


def served(lab, m, catalog, **policy):
    """The config that is served at that M, None for a miss."""
    hit = answer(lab.query(lab.problem(m=m)), catalog, replace(POLICY, **policy))
    return hit and hit.config


def reason(lab, m, catalog):
    return explain(lab.query(lab.problem(m=m)), catalog, POLICY)[1].reason


def test_between_two_neighbours_the_times_are_interpolated(lab):
    one, two = lab.cpp(), lab.cpp(blocks_m=1)
    below = lab.rows(lab.problem(m=32), {one: 0.50, two: 0.80}, aten_us=50.0)
    catalog = lab.catalog([*below, *lab.rows(lab.problem(m=64), {one: 0.52, two: 0.90})])
    hit = answer(lab.query(lab.problem(m=45)), catalog, POLICY, lab.here)
    assert (hit.rung, hit.config) == ("near", one)
    assert 0.50 < 1 / hit.speedup < 0.52
    assert 25.0 < hit.expected_us < 52.0
    assert [n["problem"] for n in hit.evidence["neighbours"]] == [lab.problem(m=32).text, lab.problem(m=64).text]
    assert 0 < hit.evidence["distance"] < 0.5
    assert 0 <= hit.evidence["expected_loss"] <= POLICY.near_loss
    assert hit.evidence["verified"] is True
    assert json.loads(json.dumps(hit.as_dict())) == hit.as_dict()


def test_the_nearest_winner_is_not_copied(lab):
    """At M=33, `brittle` wins next door at 32 and is slow at 40, `steady` is nearly as good at both: the timings say
    `steady` long before the middle."""
    brittle, steady = lab.cpp(), lab.cpp(blocks_m=1)
    catalog = at(lab, {32: {brittle: 0.50, steady: 0.51}, 40: {brittle: 0.90, steady: 0.52}})
    assert served(lab, 34, catalog) == steady


def test_a_config_that_one_neighbour_did_not_time_counts_as_somewhat_behind_there(lab):
    everywhere, once = lab.cpp(), lab.cpp(blocks_m=1)

    def winner(ratio):
        catalog = at(lab, {32: {everywhere: 0.8, once: ratio}, 48: {everywhere: 0.8}})
        return served(lab, 40, catalog, near_loss=1.0, confirm=True)

    assert winner(0.75) == everywhere
    assert winner(0.4) == once


def test_one_neighbour_answers_only_within_its_bound(lab):
    catalog = at(lab, {100: {lab.cpp(): 0.5}})
    for m in (67, 100 * 3 // 2):
        assert served(lab, m, catalog) == lab.cpp()
    for m in (65, 153):
        assert served(lab, m, catalog) is None
        assert re.search("too far.* m=100 n=256 k=256", reason(lab, m, catalog))


def test_no_times_of_neighbours_that_are_too_far_are_read(lab, monkeypatch):
    catalog = at(lab, {100: {lab.cpp(): 0.5}, 101: {lab.cpp(): 0.5}})
    read = []
    monkeypatch.setattr(from_neighbours, "timings_of", lambda *args: read.append(args) or timings_of(*args))
    assert served(lab, 65, catalog) is None
    assert not read
    assert served(lab, 90, catalog) == lab.cpp()
    assert read


def test_other_n_and_k_answer_within_their_bound(lab):
    fast = lab.cpp()
    known = [lab.problem(m=64, n=1000, k=k, dtype="fp32") for k in (256, 300)]
    catalog = lab.catalog(lab.rows_of({one: {fast: 0.5, lab.cpp(blocks_m=1): 0.6} for one in known}))
    hit = answer(lab.query(lab.problem(m=64, n=1100, dtype="fp32")), catalog, POLICY)
    assert (hit.config, len(hit.evidence["neighbours"])) == (fast, 2)
    assert answer(lab.query(lab.problem(m=64, n=1680, dtype="fp32")), catalog, POLICY) is None


def test_where_aten_wins_at_one_neighbour_and_loses_at_the_other_nothing_is_promised(lab):
    """Where ATen changes kernels between two sizes, the gain is there at one of them and gone at the other."""
    crossing = at(lab, {32: {lab.cpp(): 0.85}, 64: {lab.cpp(): 1.2}})
    assert served(lab, 45, crossing) is None
    assert "over the policy's 10.0%" in reason(lab, 45, crossing)
    assert served(lab, 45, crossing, near_loss=1.0) == ATEN
    mild = at(lab, {48: {lab.cpp(): 0.97}, 56: {lab.cpp(): 1.0}})
    hit = answer(lab.query(lab.problem(m=52)), mild, POLICY)
    assert (hit.rung, hit.config, hit.speedup) == ("near", ATEN, 1.0)


def test_an_unsure_answer_is_served_only_where_it_beats_aten_in_any_case(lab):
    """The two winners of the neighbours are far apart. That is too unsure a choice, unless ATen is the alternative and
    much slower than either; live tuning can do better."""
    one, two = lab.cpp(), lab.cpp(blocks_m=1)

    def ask(slower, **policy):
        low, high = 0.5 * slower, 0.7 * slower
        catalog = at(lab, {32: {one: low, two: high}, 64: {one: high, two: low}})
        return answer(lab.query(lab.problem(m=45)), catalog, replace(POLICY, **policy))

    assert ask(1.0).config in (one, two)
    assert ask(1.0).evidence["expected_loss"] > POLICY.near_loss
    assert ask(1.0, on_miss="live") is None
    assert ask(1.4) is None
    assert ask(1.4, near_loss=0.5).config == ATEN
    assert ask(1.4, near_loss=0.5, confirm=True).config in (one, two)


def test_what_is_faster_only_by_expectation_is_served_where_it_is_timed_first(lab):
    fast, query = lab.cpp(), lab.query(lab.problem(m=45))
    catalog = at(lab, {m: {fast: 0.95} for m in (40, 50)})
    assert answer(query, catalog, POLICY).config == ATEN
    hit = answer(query, catalog, replace(POLICY, confirm=True))
    assert (hit.config, hit.speedup) == (fast, pytest.approx(1 / 0.95, rel=STEP))
    sure = answer(query, at(lab, {m: {fast: 0.5} for m in (40, 50)}), POLICY)
    assert sure.config == fast
    assert 0 < sure.evidence["least_gain"] < sure.speedup - 1


def test_a_blocking_is_carried_over_only_where_it_is_legal(lab):
    wide, plain = lab.cpp(blocks_m=10), lab.cpp()
    catalog = at(lab, {10: {wide: 0.5, plain: 0.6}})
    assert (served(lab, 11, catalog), served(lab, 9, catalog)) == (wide, plain)


def test_nothing_is_read_across_a_size_of_one_or_at_a_size_of_zero(lab):
    catalog = at(lab, {m: {lab.cpp(): 0.5} for m in (1, 4)})
    assert served(lab, 2, catalog) is None
    assert served(lab, 3, catalog) == lab.cpp()
    assert served(lab, 0, at(lab, {2: {}})) is None


def test_a_disturbed_measurement_is_no_neighbour(lab):
    """At M=48 everything was measured while something else ran: the pair around it answers instead."""
    fast = lab.cpp()
    around = [row for m in (32, 64) for row in lab.rows(lab.problem(m=m), {fast: 0.5})]
    disturbed = [*lab.rows(lab.problem(m=48), {fast: 2.0}, spread=0.3)]
    hit = answer(lab.query(lab.problem(m=49)), lab.catalog(around + disturbed), POLICY)
    assert (hit.config, hit.speedup) == (fast, pytest.approx(2.0, rel=STEP))
    assert answer(lab.query(lab.problem(m=49)), lab.catalog(disturbed), POLICY) is None


def test_the_rung_can_be_switched_off(lab):
    catalog = at(lab, {100: {lab.cpp(): 0.5}})
    assert served(lab, 101, catalog) == lab.cpp()
    assert served(lab, 101, catalog, near=False) is None


def test_what_the_policy_denies_is_not_proposed(lab):
    one, two = lab.cpp(), lab.cpp(blocks_m=1)
    catalog = at(lab, {100: {one: 0.5, two: 0.6}})
    assert served(lab, 101, catalog, deny="blocks_m=0") == two
    assert served(lab, 101, catalog, batch_invariant=True) == ATEN


def test_wrong_and_slow_candidates_are_not_proposed(lab):
    bad, slow, good = lab.cpp(), lab.cpp(blocks_m=1), lab.cpp(blocks_m=2)
    known = lab.problem(m=100)
    measured = [*lab.rows(known, {bad: 0.2, good: 0.6}), *lab.rows(known, {slow: 0.58}, status=Status.SLOW)]
    measured += lab.rows(known, {bad: 0.2}, run="later", status=Status.WRONG)
    assert served(lab, 101, lab.catalog(measured)) == good


def test_rows_of_another_toolchain_class_need_more_gain(lab):
    fast = lab.cpp()
    catalog = at(lab, {100: {fast: 0.96}}, torch="2.12.0")
    query = lab.query(lab.problem(m=101))
    assert answer(query, catalog, POLICY).config == fast
    hit = answer(query, catalog, replace(POLICY, near_loss=0.1), lab.here)
    assert (hit.config, hit.evidence["verified"]) == (ATEN, False)


def test_neighbours_come_from_all_tables(lab):
    fast = lab.cpp()
    below, above = ([*lab.rows(lab.problem(m=m), {fast: 0.5})] for m in (32, 64))
    hit = answer(lab.query(lab.problem(m=45)), lab.catalog(below, above), POLICY)
    assert len({neighbour["table"] for neighbour in hit.evidence["neighbours"]}) == 2
