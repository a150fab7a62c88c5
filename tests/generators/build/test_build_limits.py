"""A build's limit of time: what it begins, what it ends, and what the next build goes on with."""

import time
from collections import Counter
from dataclasses import replace
from threading import Event

import pytest
from kit.replay import SPLIT_N, Replay, ReplayBackend, Watcher, stored

from gemmdb.generators import estimate
from gemmdb.generators.backend import ignore
from gemmdb.generators.build import queue
from gemmdb.generators.build.build import build
from gemmdb.generators.build.run import Run
from gemmdb.generators.effort import named
from gemmdb.generators.progress import Expected
from gemmdb.key.problem import Problem
from gemmdb.processes.pool import Stopped
from gemmdb.table.measurement import Status
from gemmdb.table.writer import Store


@pytest.mark.parametrize(
    ("spent_s", "due_s", "fitting"), [(0.0, 0.0, 3), (37.0, 0.0, 1), (37.0, 5.0, 0), (70.0, 0.0, 0)]
)
def test_no_job_begins_that_would_exceed_the_limit_by_a_tenth(request_, rows, problems, spent_s, due_s, fitting):
    """With the expected times of jobs, and of the winners that are still to be confirmed."""
    with Store.open(request_.out) as store:
        backend = ReplayBackend(rows)
        jobs = queue.jobs(problems, backend, named("quick", "cpu"))
        run = Run(replace(request_, minutes=1.0), backend, store, jobs, None)
    run.expected = run.tracker.expected = Expected(8.0, [(job.problem, 16.0 if due_s else 19.0) for job in jobs])
    run.unconfirmed = {1: due_s, 2: due_s * 2}
    assert run._fitting(60.0, spent_s) == fitting


@pytest.mark.timed
@pytest.mark.parametrize("expected_s", [0.1, 0.3, 0.9])
def test_a_limit_of_time_is_kept_within_a_tenth(request_, rows, monkeypatch, expected_s):
    """Jobs take 0.3 s: 0.1 to compile, to race and to confirm. Whatever was expected of them, the pace corrects it."""

    class Steady(Replay):
        def prepare(self, jobs, ready=ignore):
            time.sleep(0.1 * len(jobs))
            super().prepare(jobs, ready)

        def measure(self, problem, configs, protocol, samples):
            time.sleep(0.1 if samples > 5 else 0.0)  # Of the full measurements alone.
            return super().measure(problem, configs, protocol, samples)

    monkeypatch.setattr(estimate, "start_s", lambda device, effort, slower: 0.01)
    monkeypatch.setattr(estimate, "job_s", lambda job, backend, effort: expected_s)
    monkeypatch.setattr(estimate, "confirm_s", lambda job, backend, effort: expected_s / 3)
    limit_s = 1.5
    done = build(replace(request_, minutes=limit_s / 60), backend=ReplayBackend(rows, replay=Steady, chunk=4))
    assert 2 <= done.measured < 7
    assert done.seconds < 1.1 * limit_s + 0.15  # With the files and threads of the build.


def test_a_short_limit_prepares_few_jobs_together_and_ends_after_the_first(request_, rows):
    class Busy(Replay):
        def prepare(self, jobs, ready=ignore):
            prepared.append(len(jobs))
            time.sleep(2.0 * len(jobs))
            super().prepare(jobs, ready)

    prepared: list[int] = []
    done = build(replace(request_, minutes=3.0 / 60), backend=ReplayBackend(rows, replay=Busy))
    assert (prepared, done.measured) == ([1], 1)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_first_job_that_takes_longer_than_the_limit_is_ended_with_it(request_, rows, overlap):
    """A build of 30 s took 70 s on a busy machine: its first job ran to the end."""

    class Endless(Replay):
        closed = Event()

        def measure(self, problem, configs, protocol, samples):
            if not self.closed.wait(30.0):
                return super().measure(problem, configs, protocol, samples)
            raise Stopped("closed")

        def close(self):
            self.closed.set()

    watcher, limit_s = Watcher(), 2.0
    done = build(replace(request_, minutes=limit_s / 60), watcher, ReplayBackend(rows, replay=Endless, overlap=overlap))
    assert (done.measured, done.left, done.interrupted) == (0, 7, False)
    assert done.seconds < 1.5 * limit_s
    first = watcher.states[0]
    assert first.limited
    assert first.eta_s == first.most_s == pytest.approx(limit_s, abs=0.2)


def test_a_job_that_runs_over_the_limit_is_confirmed_the_next_time(request_, rows, monkeypatch):
    """The second job is raced until long after the limit."""
    monkeypatch.setattr(estimate, "start_s", lambda device, effort, slower: 0.0)
    monkeypatch.setattr(estimate, "job_s", lambda job, backend, effort: 0.01)
    raced: list[Problem] = []

    class Late(Replay):
        def measure(self, problem, configs, protocol, samples):
            if problem not in raced:
                raced.append(problem)
                time.sleep(2.5 if len(raced) == 2 else 0.0)
            return super().measure(problem, configs, protocol, samples)

    def built(minutes: float | None) -> tuple[int, int]:
        done = build(replace(request_, minutes=minutes), backend=ReplayBackend(rows, replay=Late, chunk=1))
        return done.measured, done.left

    assert built(1.5 / 60)[0] == 2
    confirmed = Counter(
        row.problem for row in stored(request_.out) if row.config == SPLIT_N and row.status is Status.OK
    )
    assert [confirmed[problem] for problem in raced] == [2, 1]
    assert built(None)[1] == 0
