"""The estimate of a build."""

from __future__ import annotations

import pytest

from gemmdb.generators import progress
from gemmdb.generators.build.build import build
from gemmdb.generators.progress import SECONDS, State, Tracker


class Watcher:
    def __init__(self) -> None:
        self.states: list[State] = []

    def update(self, state: State) -> None:
        self.states.append(state)


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


def test_a_problem_is_done_when_it_is_confirmed(request_, replay_backend, rows):
    watcher = Watcher()
    build(request_, watcher, replay_backend(rows))
    confirming = [state.done for state in watcher.states if state.phase == "confirming"]
    assert min(confirming) < 7
    assert watcher.states[0].eta_s == pytest.approx(7 * SECONDS["cpu"], abs=5)
    assert (watcher.states[-1].done, watcher.states[-1].eta_s) == (7, 0.0)
