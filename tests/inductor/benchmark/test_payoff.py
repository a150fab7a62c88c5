"""Which missed GEMMs of a graph are tuned, and in which order."""

import math
from collections import Counter

import pytest
import torch
from kit.devices import H200
from kit.sessions import FakeSession, missed
from torch.fx.experimental.proxy_tensor import make_fx

from gemmdb.devices import detect, load
from gemmdb.hit import Hit
from gemmdb.inductor.benchmark import client, payoff
from gemmdb.inductor.benchmark import tune as tuning
from gemmdb.inductor.entry import install
from gemmdb.inductor.observe.journal import JOURNAL
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem, Query
from gemmdb.settings import Policy
from gemmdb.table.measurement import Protocol, Toolchain
from gemmdb.table.verdict import Verdict

SMALL = Problem.gemm("mm", m=16, n=1024, k=1024)
DENSE = Problem.gemm("mm", m=16, n=4096, k=4096)
MIXED = Problem.gemm("mixed_mm", m=16, n=4096, k=4096)


@pytest.fixture
def group(tmp_path):
    """A function that makes the decisions of a graph whose GEMMs all miss."""

    def make(*problems, **policy):
        return missed(tmp_path / "user.db", H200, *problems, **{"live_s": 10.0, "live_calls": 100_000} | policy)

    return make


def taken(group, ready=True):
    found, left = payoff.chosen(group, ready)
    assert {decision.problem for decision in group} == {decision.problem for decision in found} | set(left)
    return [decision.problem for decision in found]


def test_the_most_valuable_gemms_are_first_and_what_saves_too_little_is_left(group):
    graph = group(SMALL, DENSE, MIXED, *[DENSE] * 15)
    saved = {p: payoff.saved_us(graph[0].session, Query(p, H200)) for p in (SMALL, DENSE, MIXED)}
    # Sixteen times the little that the dense GEMM saves is more than what the mixed one saves.
    assert 16 * saved[DENSE] > saved[MIXED] > 10 > saved[DENSE]
    assert taken(graph) == [DENSE] * 16 + [MIXED]


def test_tuning_has_to_repay_its_start_too_within_the_calls_of_the_policy(group):
    assert taken(group(MIXED), ready=True) == [MIXED]
    assert taken(group(MIXED), ready=False) == []
    assert taken(group(MIXED, MIXED), ready=False) == [MIXED] * 2
    assert taken(group(SMALL)) == []
    assert taken(group(SMALL, live_calls=100_000_000)) == [SMALL]


def test_where_nothing_can_be_expected_everything_is_tuned(group, monkeypatch):
    monkeypatch.setattr(payoff, "saving", lambda ask: None)
    assert taken(group(SMALL, DENSE), ready=False) == [SMALL, DENSE]


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


def test_what_is_not_worth_it_is_served_as_without_tuning_and_says_so(group, measured):
    dense, mixed = tuning.tune(group(DENSE, MIXED))
    assert measured == [([MIXED], 1.0)]
    assert (mixed.event.rung, dense.event.rung, dense.config) == ("live", "aten", ATEN)
    assert dense.event.note.startswith("not tuned: tuning would not pay off within 100,000 calls: it could save ")
    tuning.tune(group(*[MIXED] * 2, *[DENSE] * 30))
    assert measured[1:] == [([DENSE, MIXED], 2.0)]


def test_the_process_is_started_only_for_what_repays_it(monkeypatch):
    """GEMMs that a table answers do not count."""
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
        session = FakeSession(find, Policy(on_miss="live", live_s=10.0, live_calls=100_000), None)
        tuning.expect(session, [Query(problem, H200) for problem in problems])
        return len(started)

    assert expect([], SMALL, DENSE) == 0
    assert expect([MIXED], SMALL, DENSE, *[MIXED] * 9) == 0
    assert Counter(looked_up) == {MIXED: 1, SMALL: 1, DENSE: 1}
    assert expect([], SMALL, DENSE, *[MIXED] * 9) == 1
    assert looked_up == [MIXED]  # That one is enough.


def test_the_gemms_of_a_graph_are_told_with_their_repetitions(monkeypatch):
    told = []
    monkeypatch.setattr(tuning, "expect", lambda session, queries: told.append(queries))
    session = FakeSession(lambda query: None, Policy(on_miss="live"), "key")
    x, w = torch.randn(8, 16), torch.randn(16, 16)
    traced = make_fx(lambda x, w: torch.mm(torch.mm(torch.mm(x, w), w), w))(x, w)
    install.slots(session)["joint_custom_pre_pass"](traced.graph)
    assert [len(queries) for queries in told] == [3]


@pytest.mark.parametrize("live_cost", [9, 10])
def test_live_tuning_tries_cutlass_kernels_only_where_it_may_wait_for_nvcc(live_cost):
    """It compiles them anew, also those that ship compiled."""
    from gemmdb.lookup.acceptance.tuning import candidates
    from gemmdb.lookup.environment import current_catalog

    problem = Problem.gemm("int_mm", m=512, n=8192, k=3584)
    shipped = [table for table in current_catalog().tables if table.path.name == "sm90-nvidia-h200.db"]
    policy = Policy(compile_cost=live_cost, live_cost=live_cost)
    session = FakeSession(lambda query: None, policy, None, tables=shipped)
    found = candidates(payoff.ask_of(session, Query(problem, H200)))
    assert any(config.backend == "cutlass" for config in found) is (live_cost == 10)
    assert any(config.backend == "triton" for config in found)


QUICK, PATIENT = Policy(), Policy(live_s=300)


@pytest.fixture
def others(monkeypatch):
    """Sets how many of 16 processors others keep busy. Returns how often the load was sampled."""
    samples = []

    def keep(cores):
        monkeypatch.setattr(load, "now", lambda seconds: samples.append(seconds) or (cores and load.Load(cores)))
        return samples

    monkeypatch.setattr(payoff, "_load_s", -math.inf)
    monkeypatch.setattr(detect, "cores", lambda: 16)
    return keep


@pytest.mark.parametrize(
    ("cores", "said"),
    [(7.9, "None"), (9.2, "other programs keep 9.2 cores busy of 16; `gemmdb tune`"), (None, "None")],
    ids=["quiet", "busy", "unknown"],
)
def test_half_of_the_processors_is_enough(others, cores, said):
    samples = others(cores)
    found = payoff.load_rejection(H200, QUICK)
    assert str(found).startswith(said)
    others(0.0)
    assert payoff.load_rejection(H200, QUICK) is found, "all GEMMs of a compile get the same answer"
    assert len(samples) == 1


def test_live_chosen_by_name_waits_and_a_cpu_too(others):
    samples = others(15.0)
    assert payoff.load_rejection(H200, PATIENT) is payoff.load_rejection(detect.cpu(), QUICK) is None
    assert samples == []


def test_what_pays_is_served_as_without_live_tuning_on_a_busy_machine(others, group, monkeypatch):
    """For what does not pay, no load is sampled."""
    samples = others(9.2)
    monkeypatch.setattr(tuning, "device_rejection", lambda device: None)
    monkeypatch.setattr(tuning, "_with_room", lambda device, taken: (list(taken), []))
    monkeypatch.setattr(client, "tune", lambda requests, limit_s: pytest.fail("it was tuned"))
    monkeypatch.setattr(payoff, "saved_us", lambda session, query: 0.0)
    (left,) = tuning.tune(group(DENSE))
    assert "would not pay off" in left.event.note
    assert samples == []
    monkeypatch.setattr(payoff, "saved_us", lambda session, query: math.inf)
    (busy,) = tuning.tune(group(DENSE))
    assert busy.event.note.startswith("not tuned: other programs keep 9.2 cores busy of 16")
