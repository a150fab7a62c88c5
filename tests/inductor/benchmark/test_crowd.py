"""Nothing is tuned quickly where other programs keep the processors busy."""

import math

import pytest
from kit.sessions import FakeSession

from gemmdb.devices import detect, load, registry
from gemmdb.hit import Hit
from gemmdb.inductor.benchmark import client, payoff
from gemmdb.inductor.benchmark import tune as tuning
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.observe.journal import Event
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem, Query
from gemmdb.settings import Policy

GPU, QUICK, PATIENT = registry.find("sm90"), Policy(), Policy(live_s=300)


@pytest.fixture
def others(monkeypatch):
    """Sets how many of 16 processors others keep busy. Returns how often anyone looked."""
    looks = []

    def keep(cores):
        monkeypatch.setattr(load, "now", lambda seconds: looks.append(seconds) or load.Load(cores))
        return looks

    monkeypatch.setattr(payoff, "_load_s", -math.inf)
    monkeypatch.setattr(detect, "cores", lambda: 16)
    return keep


@pytest.mark.parametrize(
    ("cores", "said"), [(7.9, "None"), (9.2, "other programs keep 9.2 cores busy of 16; `gemmdb tune`")]
)
def test_half_of_the_processors_is_enough(others, cores, said):
    others(cores)
    found = payoff.load_rejection(GPU, QUICK)
    assert str(found).startswith(said)


def test_who_asks_by_name_waits_and_a_cpu_too(others):
    looks = others(15.0)
    assert payoff.load_rejection(GPU, PATIENT) is payoff.load_rejection(detect.cpu(), QUICK) is None
    assert looks == []


def test_all_products_of_a_compile_get_the_same_answer_and_one_look(others):
    others(9.2)
    first = payoff.load_rejection(GPU, QUICK)
    looks = others(0.0)
    assert payoff.load_rejection(GPU, QUICK) is first is not None
    assert len(looks) == 1


def test_an_unknown_load_hinders_nothing(others, monkeypatch):
    others(9.2)
    monkeypatch.setattr(load, "now", lambda seconds: None)
    assert payoff.load_rejection(GPU, QUICK) is None


def test_what_pays_is_served_as_without_live_tuning_and_says_why(others, monkeypatch, tmp_path):
    """What does not pay looks at no load."""
    looks = others(9.2)
    problem = Problem.gemm("mm", m=64, n=4096, k=4096)
    asked = FakeSession(lambda query: Hit("aten", ATEN, 1.0, 1.0, ""), QUICK, None, tmp_path / "user.db")
    group = [Decision(asked, Query(problem, GPU), None, Event(problem.text, "live", note=""))]
    monkeypatch.setattr(tuning, "device_rejection", lambda device: None)
    monkeypatch.setattr(tuning, "_with_room", lambda device, taken: (list(taken), []))
    monkeypatch.setattr(client, "tune", lambda requests, limit_s: pytest.fail("it was tuned"))
    monkeypatch.setattr(payoff, "saved_us", lambda session, query: 0.0)
    (left,) = tuning.tune(group)
    assert "would not repay" in left.event.note
    assert looks == []
    monkeypatch.setattr(payoff, "saved_us", lambda session, query: math.inf)
    (busy,) = tuning.tune(group)
    assert busy.event.note.startswith("not tuned: other programs keep 9.2 cores busy of 16")
