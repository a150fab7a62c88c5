"""GEMMs that would run ATen are timed with cuBLASLt's algorithms: what is served, the rows, and the next process. There
is no GPU here: times are invented."""

from dataclasses import replace

import pytest
from kit.algorithms import FIRST, POLICY, SECOND, SPLIT, TILE, fused, graph_of, plain, searched, session
from kit.devices import H200
from kit.horizontal import decided
from kit.sessions import stored

from gemmdb.inductor.benchmark import algorithm_rules, algorithms
from gemmdb.inductor.benchmark import algorithm_trial as trials
from gemmdb.inductor.benchmark.algorithm_trial import Race
from gemmdb.inductor.benchmark.trial import GPU, Untimed
from gemmdb.inductor.entry.table_session import TableSession
from gemmdb.inductor.observe.journal import JOURNAL
from gemmdb.kernels.config import ATEN
from gemmdb.lookup.acceptance.extern import unfused
from gemmdb.settings import Settings
from gemmdb.table.measurement import EMITTED, Status
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

pytestmark = pytest.mark.usefixtures("alone")


def served(decision):
    return decision.event.rung, decision.config, decision.event.config == decision.config.text


def test_the_faster_is_served(clock):
    (decision,) = searched(decided(graph_of(plain), session(), us=100.0))
    assert served(decision) == ("near", FIRST, True)
    event = decision.event
    assert (event.expected_us, event.speedup, event.note) == (80.0, 1.25, "")
    timed = {"config": FIRST.text, "us": 80.0, "aten_us": 100.0, "protocol": GPU.text}
    assert event.evidence["confirmed"] == timed


@pytest.mark.parametrize(
    ("times", "least", "config"),
    [
        ({FIRST: 99.5}, 0.0, ATEN),  # A tie.
        ({FIRST: 97.0}, 0.02, FIRST),
        ({FIRST: 97.0}, 0.05, ATEN),
        ({FIRST: 110.0}, 0.0, ATEN),
        ({SPLIT: 79.5, SECOND: 80.0}, 0.02, SECOND),  # Of two that tie, the one that sums in one order.
        ({SPLIT: 70.0, SECOND: 80.0}, 0.02, SPLIT),
    ],
)
def test_an_algorithm_must_gain_what_the_policy_requires(clock, times, least, config):
    clock.us = {ATEN: 100.0, **times}
    (decision,) = searched(decided(graph_of(plain), session(replace(POLICY, min_gain=least)), us=100.0))
    assert decision.config == config


@pytest.mark.parametrize(("captured", "config"), [(True, SPLIT), (False, SECOND)])
def test_the_best_unsplit_algorithm_is_served_where_a_split_takes_the_host_too_long(clock, captured, config):
    """Both gain 10% or more, but the GPU would wait for the host."""
    clock.us = {ATEN: 15.5, SPLIT: 12.0, SECOND: 14.0}
    policy = replace(POLICY, captured=captured)
    (decision,) = searched(decided(graph_of(plain), session(policy), us=15.5))
    assert decision.config == config


def test_a_split_of_an_earlier_process_with_a_cuda_graph_is_not_served_without_one(clock):
    clock.us = {ATEN: 15.5, SPLIT: 12.0}
    (decision,) = searched(decided(graph_of(plain), session(replace(POLICY, captured=True)), us=15.5))
    assert decision.config == SPLIT
    algorithms._KNOWN.clear()
    with Table.open(Settings.read().user_table) as table:
        new = session(replace(POLICY, captured=False), tables=(table,))
        (again,) = searched(decided(graph_of(plain), new, us=15.5))
    assert len(clock.seen) == 1, "it is known"
    assert again.config == ATEN


def test_layers_share_a_trial_whatever_follows_them(clock):
    pairs = [*decided(graph_of(plain), session(), 100.0), *decided(graph_of(fused), session(), 103.0)]
    one, two = searched(pairs)
    assert len(clock.seen) == 1
    assert clock.seen[0].problem == unfused(two.problem) == one.problem
    assert one.config == two.config == FIRST
    # It saves 20 us with the relu behind it, too.
    assert two.event.expected_us == pytest.approx(83.0)
    assert two.event.speedup == pytest.approx(103 / 83)
    assert {(row.problem, row.config, row.detail, row.protocol) for row in stored()} == {
        (one.problem, config, EMITTED, GPU) for config in (ATEN, FIRST, SECOND)
    }
    assert [served(two) for two in searched(decided(graph_of(fused), session(), 103.0))] == [("near", FIRST, True)]
    assert len(clock.seen) == 1  # The process remembers it.


def test_the_next_process_is_served_without_a_trial(clock, tmp_path):
    policy = POLICY.resolved(Settings.read())
    searched(decided(graph_of(fused), session(), 103.0))
    new = TableSession(policy, settings=Settings.read())
    for function, rung in ((plain, "exact"), (fused, "epilogue")):
        ((_, decision),) = decided(graph_of(function))
        hit = new.find(decision.query)
        assert (hit.rung, hit.config, hit.speedup) == (rung, FIRST, pytest.approx(1.25))
        served = replace(decision, session=new, config=hit.config, event=decision.event.answered(hit))
        assert "a measured kernel" in str(algorithm_rules.rejection(served))


def test_the_next_process_does_not_search_where_none_was_faster(clock):
    clock.us = {ATEN: 100.0, FIRST: 120.0}
    searched(decided(graph_of(fused), session(), 103.0))
    algorithms._KNOWN.clear()
    with Table.open(Settings.read().user_table) as table:
        again = searched(decided(graph_of(fused), session(tables=(table,)), 103.0))
    assert (len(clock.seen), again[0].config) == (1, ATEN)


def test_a_build_that_timed_algorithms_settles_a_gemm(clock, lab):
    ((_, known),) = decided(graph_of(fused))
    tables = lab.catalog(lab.rows(known.problem, {FIRST: 1.1}, device=H200, clock="graph")).tables
    assert searched(decided(graph_of(fused), session(tables=tables), 103.0))[0].config == ATEN
    assert clock.seen == []


def test_what_was_measured_with_the_epilogue_counts_more_than_a_trial_without(clock, lab):
    ((_, known),) = decided(graph_of(fused))
    tables = lab.catalog(lab.rows(known.problem, {FIRST: 1.02}, device=H200, clock="graph")).tables
    assert searched(decided(graph_of(fused), session(), 103.0))[0].config == FIRST
    assert searched(decided(graph_of(fused), session(tables=tables), 103.0))[0].config == ATEN


def test_what_an_earlier_process_found_is_compared_with_a_kernel_of_ours(clock):
    searched(decided(graph_of(plain), session(), 100.0))
    algorithms._KNOWN.clear()
    with Table.open(Settings.read().user_table) as table:
        ((node, guess),) = decided(graph_of(fused), session(tables=(table,)), 103.0)
        guess = replace(guess, config=TILE, event=replace(guess.event, config=TILE.text, speedup=2.0))
        search = algorithms.Search()
        search.run([(node, guess)])
        # The kernel turned out to be slower than ATen.
        (decision,) = search.decide([replace(guess, config=ATEN, event=guess.event.refused("slower"))])
    assert (len(clock.seen), served(decision)) == (1, ("near", FIRST, True))
    assert decision.event.expected_us == pytest.approx(206 - 20)


@pytest.mark.parametrize(("us", "config"), [(90.0, FIRST), (70.0, TILE)])
def test_a_confirmed_kernel_of_ours_is_served_if_it_saves_more(clock, us, config):
    ((node, guess),) = decided(graph_of(fused), session(), 103.0)
    guess = replace(guess, config=TILE, event=replace(guess.event, config=TILE.text, expected_us=80.0, speedup=1.3))
    search = algorithms.Search()
    search.run([(node, guess)])
    event = replace(guess.event, expected_us=us, speedup=103 / us, evidence={"confirmed": {}})
    (decision,) = search.decide([replace(guess, event=event)])
    assert decision.config == config


@pytest.mark.parametrize(("us", "config"), [(70.0, SECOND), (99.5, ATEN)])
def test_an_expected_algorithm_is_one_of_the_candidates(clock, us, config):
    ((node, guess),) = decided(graph_of(plain), session(), 100.0)
    guess = replace(guess, config=SECOND, event=replace(guess.event, config=SECOND.text, expected_us=60.0))
    clock.us = {ATEN: 100.0, SECOND: us}
    ((_, decision),) = algorithms.Search().settle([(node, guess)])
    assert decision.config == config
    assert decision.event.note == ("" if config == SECOND else "no algorithm of cuBLASLt beats ATen here")


def test_a_miss_that_an_algorithm_answers_counts_as_tuned(clock):
    ((node, missed),) = decided(graph_of(plain), session(), None)
    missed = replace(missed, event=replace(missed.event, rung="aten", speedup=None, note="no rows"), refused=True)
    (decision,) = searched([(node, missed)] * 30)[:1]
    assert served(decision) == ("live", FIRST, True)
    assert (decision.unanswered, decision.refused, decision.event.note) == (False, False, "")
    clock.us = {ATEN: 100.0}


def test_a_miss_stays_one_where_no_algorithm_is_faster(clock):
    clock.us = {ATEN: 100.0, FIRST: 100.0}
    ((node, missed),) = decided(graph_of(plain), session(), 100.0)
    missed = replace(missed, event=replace(missed.event, rung="aten", note="no rows"))
    assert searched([(node, missed)]) == [missed]


def test_a_wrong_result_is_never_served(clock):
    clock.us, clock.wrong = {ATEN: 100.0}, (FIRST,)
    (decision,) = searched(decided(graph_of(plain), session(), 100.0))
    assert decision.config == ATEN
    assert {(row.config, row.status) for row in stored()} == {(FIRST, Status.WRONG)}


def test_rows_do_not_hide_a_faster_kernel_that_another_table_knows(clock, lab):
    ((_, known),) = decided(graph_of(plain))
    for ratio, kept in ((0.7, set()), (0.9, {ATEN, FIRST, SECOND})):
        algorithms._KNOWN.clear()
        tables = lab.catalog(lab.rows(known.problem, {TILE: ratio}, device=H200, clock="graph")).tables
        (decision,) = searched(decided(graph_of(fused), session(tables=tables), 103.0))
        assert decision.config == FIRST
        assert {row.config for row in stored()} == kept


@pytest.mark.parametrize(("speedup", "hidden"), [(2.0, False), (1.1, True)])
def test_nor_a_kernel_that_is_expected_to_save_more(clock, speedup, hidden):
    """Where that is not confirmed, the next lookup answers as before."""
    ((node, guess),) = decided(graph_of(plain), session(), 100.0 / speedup)
    guess = replace(guess, config=TILE, event=replace(guess.event, config=TILE.text, speedup=speedup))
    searched([(node, guess)])
    assert bool(stored()) == hidden


def test_times_that_vary_too_much_decide_nothing(clock, monkeypatch):
    noisy = Race([100.0] * 9, {FIRST: [float(us) for us in range(10, 100, 10)]})
    monkeypatch.setattr(trials, "race", lambda *args: noisy)
    assert searched(decided(graph_of(plain), session(), 100.0))[0].config == ATEN
    assert stored() == []


@pytest.mark.parametrize("error", [Untimed("no memory"), RuntimeError("cuBLAS\nfailed")])
def test_a_failure_leaves_aten(clock, monkeypatch, error):
    def raising(*args):
        raise error

    monkeypatch.setattr(trials, "race", raising)
    search, pairs = algorithms.Search(), decided(graph_of(plain), session(), 100.0)
    search.run(pairs)
    assert search.decide([decision for _, decision in pairs]) == [decision for _, decision in pairs]
    assert len(JOURNAL.errors) == isinstance(error, RuntimeError)


def test_a_table_without_algorithms_is_no_answer(clock):
    ((_, decision),) = decided(graph_of(plain))
    path = Settings.read().user_table
    with Store.open(path) as store:
        store.refresh()
    with Table.open(path) as table:
        assert searched(decided(graph_of(plain), session(tables=(table,)), 100.0))[0].config == FIRST
    assert decision.problem == clock.seen[0].problem
