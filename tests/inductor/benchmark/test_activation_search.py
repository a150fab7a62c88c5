"""A GEMM whose activation cuBLASLt computes, too, is timed with it, and the faster is confirmed. There is no GPU here:
times are invented."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from kit.algorithms import FIRST, POLICY, SECOND, TILE, fused, graph_of, plain, searched, session
from kit.devices import H200
from kit.horizontal import decided
from kit.sessions import stored

from gemmdb import Problem
from gemmdb.inductor.benchmark import algorithm_jobs as jobs
from gemmdb.inductor.benchmark import algorithm_rules, algorithm_trial, algorithms, confirm, rules
from gemmdb.inductor.benchmark.confirm import Result
from gemmdb.inductor.entry.table_session import TableSession
from gemmdb.inductor.observe.journal import JOURNAL
from gemmdb.kernels.config import ATEN
from gemmdb.kernels.menus.cublaslt_nearby import activated
from gemmdb.key.problem import Query
from gemmdb.settings import Settings
from gemmdb.table.measurement import EMITTED, Measurement, Protocol, Status, Times
from gemmdb.table.verdict import decide as verdict

pytestmark = pytest.mark.usefixtures("alone")
RELU, OTHER = activated(FIRST, "relu"), activated(SECOND, "relu")


def biased(x, w, b):
    return torch.relu(torch.addmm(b, x, w.t())) @ w


def added(x, w, b):
    return (x @ w.t()) + 1


def settled(pairs):
    """The decisions of a graph before anything is confirmed, and the search."""
    search = algorithms.Search()
    found = [decision for _, decision in search.settle(pairs)]
    assert JOURNAL.errors == []
    return found, search


@pytest.fixture
def clock(clock):
    clock.us |= {RELU: 70.0, OTHER: 75.0}
    return clock


def test_the_kernel_with_the_activation_is_confirmed_if_it_is_faster(clock):
    (decision,), _ = settled(decided(graph_of(fused), session(), us=105.0))
    (operands,) = clock.seen
    assert (operands.activation, operands.shape.activation) == ("relu", "relu")
    assert operands.problem == decision.problem
    assert decision.config == RELU
    assert (decision.event.rung, decision.event.expected_us, decision.event.speedup) == ("live", 70.0, 100 / 70)
    assert rules.in_doubt(decision), "Inductor's kernel after ATen's is another than torch's"
    assert stored() == []


@pytest.mark.parametrize("us", [99.0, 120.0])
def test_it_must_gain_what_the_policy_requires(clock, us):
    clock.us = {ATEN: 100.0, RELU: us}
    pairs = decided(graph_of(fused), session(), us=100.0)
    assert settled(pairs)[0] == [decision for _, decision in pairs]


def test_it_must_save_more_than_the_expected_kernel(clock):
    for speedup, config in ((1.2, RELU), (2.0, TILE)):
        ((node, one),) = decided(graph_of(fused), session(), us=100.0)
        event = replace(one.event, config=TILE.text, expected_us=100 / speedup, speedup=speedup)
        (decision,), _ = settled([(node, replace(one, config=TILE, event=event))])
        assert decision.config == config


def test_an_algorithm_without_it_is_served_if_that_saves_more(clock):
    pairs = decided(graph_of(fused), session(), us=100.0)
    for us, config in ((70.0, RELU), (90.0, FIRST)):
        (decision,), search = settled(pairs)
        search.run([(pairs[0][0], decision)])
        timed = replace(decision.event, expected_us=us, speedup=100 / us)
        (last,) = search.decide([replace(decision, event=timed)])
        assert last.config == config


def test_the_plain_algorithm_remains_where_it_was_not_confirmed(clock):
    pairs = decided(graph_of(fused), session(), us=100.0)
    (decision,), search = settled(pairs)
    search.run([(pairs[0][0], decision)])
    (last,) = search.decide([replace(decision, config=ATEN, event=decision.event.refused("slower"))])
    assert last.config == FIRST


def test_only_gemms_with_an_activation_alone(clock):
    for function in (plain, added):
        pairs = decided(graph_of(function), session(), us=100.0)
        assert settled(pairs)[0] == [decision for _, decision in pairs]
    assert clock.seen == []


def measured(problem, config, us):
    return Measurement(
        problem, config, H200, Protocol("graph", "cold", 10, 15, version=4), jobs.installed("cuda"), "test",
        Status.OK, Times(us, us, us, 15, 100.0), detail=EMITTED,
    )  # fmt: skip


EARLIER = pytest.mark.parametrize(
    ("config", "rung", "speedup", "last"),
    # The expected kernel was not confirmed either.
    [(ATEN, "near", 1.0, ATEN), (FIRST, "exact", 1.2, FIRST), (TILE, "near", 1.2, ATEN)],
    ids=["aten", "measured", "expected"],
)
"""Decisions before an activation is searched, and the config without it."""


def activated_pair(config, rung, speedup):
    ((node, one),) = decided(graph_of(fused), session(), us=100.0)
    event = replace(one.event, rung=rung, config=config.text, expected_us=100 / speedup, speedup=speedup)
    (decision,), _ = settled([(node, replace(one, config=config, event=event))])
    assert decision.config == RELU
    return node, decision


@EARLIER
def test_the_earlier_decision_holds_if_the_activation_loses(clock, config, rung, speedup, last):
    _, decision = activated_pair(config, rung, speedup)
    slow = verdict([measured(decision.problem, one, us) for one, us in ((ATEN, 100.0), (RELU, 110.0))])
    for found in (Result(slow, 110.0, 100.0), Result(None)):
        lost = confirm._by_trial(decision, found)
        assert (lost.config, lost.entry) == (last, decision.entry)
        assert "not confirmed: cublaslt:matmul_activation" in lost.event.note
    fast = verdict([measured(decision.problem, one, us) for one, us in ((ATEN, 100.0), (RELU, 70.0))])
    assert confirm._by_trial(decision, Result(fast, 70.0, 100.0)).config == RELU


@EARLIER
@pytest.mark.parametrize("failing", ["budget", "rules", "jobs", "nothing begins"])
def test_the_earlier_decision_holds_where_nothing_is_confirmed(
    clock, monkeypatch, failing, config, rung, speedup, last
):
    def raising(*args):
        raise RuntimeError("something broke")

    node, decision = activated_pair(config, rung, speedup)
    confirmation = confirm.Confirmation(raising)
    with monkeypatch.context() as patch:
        if failing == "budget":
            patch.setattr(confirm, "TrialLimit", lambda policy: SimpleNamespace(limit_s=0.0))
        elif failing == "rules":
            patch.setattr(rules, "in_doubt", raising)
        elif failing == "jobs":
            patch.setattr(confirm.at_rows.cutting, "cut", raising)
        if failing != "nothing begins":
            confirmation.begin([(node, decision)])
    (final,) = confirmation.decide([(node, decision)])
    assert (final.config, final.entry) == (last, decision.entry)
    assert "not confirmed: " in final.event.note


def test_layers_share_a_trial_with_their_bias(clock):
    pairs = [*decided(graph_of(biased, n=1024), session(), 100.0), *decided(graph_of(biased, n=1024), session(), 100.0)]
    found, _ = settled(pairs)
    assert [decision.config for decision in found] == [RELU, ATEN, RELU, ATEN]
    (operands,) = clock.seen
    assert (operands.problem.op, len(operands.fakes), operands.shape.bias) == ("addmm", 3, "bf16")


def test_a_failure_leaves_aten(clock, monkeypatch):
    def raising(*args):
        raise RuntimeError("cuBLAS failed")

    monkeypatch.setattr(algorithm_trial, "race", raising)
    pairs = decided(graph_of(fused), session(), us=100.0)
    assert [decision.config for _, decision in algorithms.Search().settle(pairs)] == [ATEN]
    assert len(JOURNAL.errors) == 1


def rows(path, problem, us):
    from gemmdb.table.writer import Store

    with Store.open(path) as store:
        store.add(measured(problem, config, one) for config, one in {ATEN: 100.0, RELU: us}.items())
        store.refresh()


def test_the_next_process_finds_the_rows(clock):
    ((node, decision),) = decided(graph_of(fused))
    rows(Settings.read().user_table, decision.problem, 70.0)
    new = TableSession(POLICY.resolved(Settings.read()), settings=Settings.read())
    hit = new.find(decision.query)
    assert (hit.rung, hit.config) == ("exact", RELU)
    again = replace(decision, session=new, config=hit.config, event=decision.event.answered(hit))
    assert algorithm_rules.activation_rejection(again, node) is not None
    # Another epilogue of the class gets no kernel that computes this one.
    assert new.find(replace(decision.query, activation="")).rung == "model"


def test_the_next_process_does_not_try_again_what_lost(clock):
    ((node, decision),) = decided(graph_of(fused))
    rows(Settings.read().user_table, decision.problem, 110.0)
    new = TableSession(POLICY.resolved(Settings.read()), settings=Settings.read())
    assert new.find(decision.query).rung == "model"
    assert "settle" in str(algorithm_rules.activation_rejection(replace(decision, session=new), node))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"activation": ""}, "does not compute"),
        ({"config": TILE, "rung": "exact"}, "measured kernel"),
        ({"config": FIRST, "rung": "exact"}, ""),
        ({"rung": "forced"}, "elsewhere"),
        ({"config": None}, "elsewhere"),
        ({"policy": replace(POLICY, confirm=False)}, "policy"),
        ({"problem": Problem.gemm("mm", m=768, n=511, k=1023, fusion="pointwise")}, "16"),
        ({"problem": Problem.gemm("mm", m=768, n=512, k=1024, dtype="fp32", fusion="pointwise")}, "operands of"),
    ],
)
def test_which_gemms_are_searched(changes, reason):
    ((_, one),) = decided(graph_of(fused))
    config = changes.get("config", ATEN)
    event = replace(one.event, rung=changes.get("rung", "near"), config=config.text if config else "")
    query = Query(changes.get("problem", one.problem), H200, activation=changes.get("activation", "relu"))
    decision = replace(one, session=session(changes.get("policy", POLICY)), query=query, config=config, event=event)
    found = algorithm_rules.activation_rejection(decision)
    assert (reason in str(found)) if reason else found is None


def test_the_search_without_the_activation_is_as_before(clock):
    (decision,) = searched(decided(graph_of(fused), session(), us=105.0))
    assert decision.config == FIRST
    assert {row.config for row in stored()} == {ATEN, FIRST, SECOND}
