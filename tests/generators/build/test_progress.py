"""The estimate of a build."""

from __future__ import annotations

import pytest
from kit.replay import Watcher

from gemmdb.cli.progress import takes
from gemmdb.generators import progress
from gemmdb.generators.progress import Expected, State, Tracker


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    return now


def test_an_estimate_comes_before_the_first_problem_and_then_from_the_pace(clock, problems):
    watcher = Watcher()
    jobs = [(problem, 15.0) for problem in problems[:4]]
    tracker = Tracker(watcher, 6, 2, Expected(8.0, jobs), started=0.0)
    clock[0] = 20.0
    tracker.say("compiling")
    clock[0] = 1000.0
    tracker.say("racing", problems[0])
    clock[0] = 46.0
    tracker.finished(problems[0])
    assert [state.eta_s for state in watcher.states] == [
        68.0,
        48.0,
        15.0,
        pytest.approx(45 * (46 + 15) / (8 + 15 + 15)),
    ]
    assert [state.phase for state in watcher.states] == ["starting", "compiling", "racing", "racing"]


def test_the_first_of_several_that_are_prepared_together_does_not_triple_the_estimate(clock, problems):
    watcher = Watcher()
    jobs = [(problem, 15.0) for problem in problems]
    tracker = Tracker(watcher, len(jobs), 0, Expected(8.0, jobs, ahead=4), started=0.0)
    clock[0] = 8.0 + 4 * 8.0 + 7.0  # The start, compiling four, and the first of them.
    tracker.finished(problems[0])
    expected = 15.0 * (len(jobs) - 1)
    assert expected < watcher.states[-1].eta_s < 1.4 * expected


def test_large_problems_count_for_more(clock, problems):
    watcher = Watcher()
    tracker = Tracker(watcher, 2, 0, Expected(0.0, [(problems[0], 10.0), (problems[1], 90.0)]), started=0.0)
    clock[0] = 10.0
    tracker.finished(problems[0])
    assert watcher.states[-1].eta_s == 90.0


def test_what_may_follow_is_said_beside_what_is_left(clock, problems):
    watcher = Watcher()
    Tracker(watcher, 2, 0, Expected(5.0, [(problems[0], 10.0)] * 2, workers=2, more_s=60.0), started=0.0)
    assert [(state.eta_s, state.most_s) for state in watcher.states] == [(15.0, 45.0)]
    assert takes(watcher.states[0]) == "about 15 s to 45 s"


def test_without_an_expectation_there_is_no_estimate_at_first(clock):
    watcher = Watcher()
    Tracker(watcher, 10, 0, started=0.0)
    assert watcher.states == [State(10, 0)]
    assert takes(watcher.states[0]) == ""
