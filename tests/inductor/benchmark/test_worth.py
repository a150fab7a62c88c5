"""Which missed products of a graph are tuned, in which order, and how long it may take."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from kit.sessions import FakeSession
from torch.fx.experimental.proxy_tensor import make_fx

from gemmdb.devices import registry
from gemmdb.hit import Hit
from gemmdb.inductor.benchmark import client, limits, payoff
from gemmdb.inductor.benchmark import tune as tuning
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.entry import install
from gemmdb.inductor.observe.journal import JOURNAL, Event
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem, Query
from gemmdb.settings import Policy
from gemmdb.table.measurement import Protocol, Toolchain
from gemmdb.table.verdict import Verdict

H200 = registry.find("NVIDIA H200")
SMALL = Problem.gemm("mm", m=16, n=1024, k=1024)
DENSE = Problem.gemm("mm", m=16, n=4096, k=4096)
MIXED = Problem.gemm("mixed_mm", m=16, n=4096, k=4096)
NOW = "not tuned: tuning would not repay within 100,000 calls: it could save "


@pytest.fixture
def asked(tmp_path):
    """A function that makes the decisions of a graph whose products all miss."""

    def make(*problems, **policy):
        asking = FakeSession(
            lambda query: None, Policy(on_miss="live", **{"live_s": 10.0, "live_calls": 100_000} | policy), None,
            tmp_path / "user.db",
        )  # fmt: skip
        return [Decision(asking, Query(p, H200), None, Event(p.text, "live")) for p in problems]

    return make


def taken(group, ready=True):
    found, left = payoff.chosen(group, ready)
    assert {decision.problem for decision in group} == {decision.problem for decision in found} | set(left)
    return [decision.problem for decision in found]


def test_the_most_valuable_products_are_first_and_what_saves_too_little_is_left(asked):
    group = asked(SMALL, DENSE, MIXED, *[DENSE] * 15)
    saved = {p: payoff.saved_us(group[0].session, Query(p, H200)) for p in (SMALL, DENSE, MIXED)}
    # Sixteen times the little that the dense product saves is more than what the mixed one saves.
    assert 16 * saved[DENSE] > saved[MIXED] > 10 > saved[DENSE]
    assert taken(group) == [DENSE] * 16 + [MIXED]


def test_tuning_has_to_repay_its_start_too(asked):
    group = asked(MIXED)
    assert taken(group, ready=True) == [MIXED]
    assert taken(group, ready=False) == []
    assert taken(asked(MIXED, MIXED), ready=False) == [MIXED] * 2


def test_a_longer_horizon_has_more_tuned(asked):
    assert taken(asked(SMALL)) == []
    assert taken(asked(SMALL, live_calls=100_000_000)) == [SMALL]


def test_where_nothing_can_be_expected_everything_is_tuned(asked, monkeypatch):
    monkeypatch.setattr(payoff, "saving", lambda ask: None)
    assert taken(asked(SMALL, DENSE), ready=False) == [SMALL, DENSE]


def test_a_graph_waits_a_second_per_product_and_three_for_the_first():
    policy = Policy(on_miss="live", live_s=10.0)
    assert [limits.tuning_s(policy, n, ready=False) for n in (1, 2, 5, 50)] == [3.0, 4.0, 7.0, 8.0]
    assert [limits.tuning_s(policy, n, ready=True) for n in (1, 2, 50)] == [1.0, 2.0, 8.0]
    assert limits.tuning_s(replace(policy, live_s=300.0), 1, ready=True) == 300.0


@pytest.fixture
def measured(monkeypatch):
    """What was measured: a stand-in for the generator, which needs the GPU."""
    seen = []

    def tune(requests, limit_s):
        seen.append(([request.problem for request in requests], limit_s))
        found = Toolchain(torch="2.11.0", cuda="13.0"), Protocol("graph", "cold", 20, 30)
        return client.Tuned({
            one.problem: Verdict(one.problem, H200, found[1], found[0], (ATEN,), 1.0, 0.01, 10.0, 1)
            for one in requests
        })  # fmt: skip

    monkeypatch.setattr(client, "tune", tune)
    monkeypatch.setattr(client, "ready", lambda: True)
    monkeypatch.setattr(tuning, "device_rejection", lambda device: None)
    monkeypatch.setattr(tuning, "_gpu", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda gpu: (64 << 30, 80 << 30))
    yield seen
    JOURNAL.drop()


def test_what_is_not_worth_it_is_served_as_without_tuning_and_says_so(asked, measured):
    group = asked(DENSE, MIXED)
    dense, mixed = tuning.tune(group)
    assert measured == [([MIXED], 1.0)]
    assert (mixed.event.rung, dense.event.rung) == ("live", "aten")
    assert dense.event.note.startswith(NOW)
    assert dense.config == ATEN


def test_they_are_measured_in_order_of_what_they_save(asked, measured):
    tuning.tune(asked(*[MIXED] * 2, *[DENSE] * 30))
    assert measured == [([DENSE, MIXED], 2.0)]


def test_the_process_is_started_only_for_what_repays_it(monkeypatch):
    """Products that a table answers do not count."""
    started, looked_up = [], []
    monkeypatch.setattr(client, "start", lambda *what: started.append(what))
    monkeypatch.setattr(client, "ready", lambda: False)
    monkeypatch.setattr(tuning.rules, "missing_library", lambda: "")
    monkeypatch.setattr(tuning, "device_rejection", lambda device: None)
    monkeypatch.setattr(tuning, "_gpu", lambda device: 0)

    def expect(answered, *problems):
        def find(query):
            looked_up.append(query.problem)
            return Hit("exact", ATEN, 1.0, 1.0, "") if query.problem in answered else None

        looked_up.clear()
        monkeypatch.setattr(tuning, "_expected", -1e9)
        asking = FakeSession(find, Policy(on_miss="live", live_s=10.0, live_calls=100_000), None)
        tuning.expect(asking, [Query(problem, H200) for problem in problems])
        return len(started)

    assert expect([], SMALL, DENSE) == 0
    assert expect([MIXED], SMALL, DENSE, *[MIXED] * 9) == 0
    assert Counter(looked_up) == {MIXED: 1, SMALL: 1, DENSE: 1}
    assert expect([], SMALL, DENSE, *[MIXED] * 9) == 1
    assert looked_up == [MIXED]  # That one is enough.


def test_the_products_of_a_graph_are_told_with_their_repetitions(monkeypatch):
    told = []
    monkeypatch.setattr(tuning, "expect", lambda asking, queries: told.append(queries))
    looking = FakeSession(lambda query: None, Policy(on_miss="live"), "key")
    x, w = torch.randn(8, 16), torch.randn(16, 16)
    traced = make_fx(lambda x, w: torch.mm(torch.mm(torch.mm(x, w), w), w))(x, w)
    install.slots(looking)["joint_custom_pre_pass"](traced.graph)
    assert [len(queries) for queries in told] == [3]


@pytest.mark.parametrize("live_cost", [9, 10])
def test_live_tuning_tries_cutlass_kernels_only_where_it_may_wait_for_nvcc(live_cost):
    """It compiles them anew, also those that ship compiled."""
    from gemmdb.lookup.candidates import candidates
    from gemmdb.lookup.environment import current_catalog

    problem = Problem.gemm("int_mm", m=512, n=8192, k=3584)
    shipped = [table for table in current_catalog().tables if table.path.name == "sm90-nvidia-h200.db"]
    policy = Policy(compile_cost=live_cost, live_cost=live_cost)
    of = FakeSession(lambda query: None, policy, None, tables=shipped)
    found = candidates(payoff.ask_of(of, Query(problem, H200)))
    assert any(config.backend == "cutlass" for config in found) is (live_cost == 10)
    assert any(config.backend == "triton" for config in found)
