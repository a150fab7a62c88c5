"""The estimate of a build."""

from __future__ import annotations

import pytest
from kit.replay import Watcher

from gemmdb.generators import progress
from gemmdb.generators.progress import State, Tracker


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    return now


def test_an_estimate_comes_before_the_first_problem_and_then_from_the_pace(clock, problems):
    watcher = Watcher()
    tracker = Tracker(watcher, 10, 2, expected_s=15.0, started=0.0)
    clock[0] = 20.0
    tracker.say("compiling")
    clock[0] = 1000.0
    tracker.say("racing", problems[0])
    tracker.finished(problems[0])
    assert [state.eta_s for state in watcher.states] == [120.0, 100.0, 15.0, 7000.0]
    assert [state.phase for state in watcher.states] == ["starting", "compiling", "racing", "racing"]


def test_without_an_expectation_there_is_no_estimate_at_first(clock):
    watcher = Watcher()
    Tracker(watcher, 10, 0, started=0.0)
    assert watcher.states == [State(10, 0)]
