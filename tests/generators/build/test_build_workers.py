"""The workers of a build, over recorded outcomes: what goes first, what waits for a compiler, and when time is up."""

import threading
import time
from dataclasses import replace

import pytest
from kit.replay import Code, Emitting, Never, Replay, ReplayBackend, Slow, emits, stored, verdict

from gemmdb.generators import effort
from gemmdb.generators.backend import Job, Lost, Outcome, ignore
from gemmdb.generators.build import scheduler
from gemmdb.generators.build.build import build
from gemmdb.kernels.config import ATEN
from gemmdb.table.measurement import EMITTED, Protocol, Status
from gemmdb.table.reader import Table


def overlapping(rows, replay, **given):
    """A backend that compiles while it measures."""
    return ReplayBackend(rows, replay=replay, overlap=True, **given)


def test_a_time_limit_ends_the_build_cleanly(request_, rows):
    report = build(replace(request_, minutes=0.005), backend=ReplayBackend(rows, replay=Slow))
    assert not report.interrupted
    assert 0 < report.measured < 7
    assert report.left == 7 - report.measured
    winners = sum(row.config != ATEN and row.status is Status.OK for row in stored(request_.out))
    assert winners == 3 * report.measured  # The template, and its split with a confirmation.
    assert build(request_, backend=ReplayBackend(rows)).measured == report.left


def test_the_report_counts_the_time_of_the_devices(request_, rows):
    class Busy(Slow):
        busy_s = 0.1

    report = build(request_, backend=ReplayBackend(rows, workers=2, replay=Busy))
    assert report.workers == 2
    assert report.busy_seconds == pytest.approx(0.2)
    assert report.worker_seconds >= 14 * Slow.delay
    assert report.seconds_per_job == pytest.approx(report.worker_seconds / 7)
    assert report.busy_share == pytest.approx(0.2 / report.worker_seconds)
    idle = build(request_, backend=ReplayBackend(rows))
    assert (idle.workers, idle.seconds_per_job, idle.busy_share) == (0, None, None)


class Compiling(Replay):
    """Problems of 4 rows and more have their kernels a while after the others."""

    def prepare(self, jobs, ready=ignore):
        for job in jobs:
            threading.Timer(0.0 if job.problem.m < 4 else 0.5, ready, [job]).start()


@pytest.mark.parametrize("overlap", [False, True])
def test_problems_whose_kernels_are_compiled_go_first(request_, rows, overlap):
    backend = ReplayBackend(rows[::-1], replay=Compiling, chunk=4, overlap=overlap)
    assert build(request_, backend=backend).measured == 7
    order = [problem.m for problem, _, samples in backend.made[0].calls if samples == 5]
    assert sorted(order) == [1, 2, 4, 8, 16, 32, 64]
    assert sorted(order[:2]) == [1, 2]


class Late(Emitting):
    """The code of winners is compiled when all problems have been raced."""

    def __init__(self, rows):
        super().__init__(rows)
        self.emissions = []

    def prepare(self, jobs, ready=ignore):
        self.emissions += [(job, ready) for job in jobs if emits(job)]
        super().prepare([job for job in jobs if not emits(job)], ready)
        if len(self.emissions) == 7:
            for job, call in self.emissions:
                call(job)


def test_winners_whose_code_is_still_compiled_are_confirmed_later(request_, rows):
    backend = overlapping(rows, Late)
    assert build(request_, backend=backend).measured == 7
    kinds = [isinstance(configs[-1], Code) for _, configs, _ in backend.made[0].calls]
    assert kinds.index(True) == 14  # An estimate and a full measurement of each problem come before.
    assert sum(kinds) == 7


class Disappointing(Emitting):
    """Emitted code takes three times as long as was raced, so that the next one is confirmed, too."""

    factor = 3.0

    def __init__(self, rows):
        super().__init__(rows)
        self.compiled = set()

    def prepare(self, jobs, ready=ignore):
        self.compiled |= {(job.problem, config) for job in jobs for config in job.legal}
        super().prepare(jobs, ready)


def test_no_lane_waits_for_the_code_of_a_second_winner(request_, rows):
    backend = overlapping(rows, Disappointing)
    assert build(request_, backend=backend).measured == 7
    made = backend.made[0]
    confirmed = [(problem, configs[-1]) for problem, configs, _ in made.calls if isinstance(configs[-1], Code)]
    assert len(confirmed) == 14  # Both candidates of each problem.
    assert set(confirmed) <= made.compiled
    assert {verdict(request_.out, problem).pick for problem, _ in confirmed} == {ATEN}


class AsRaced(Emitting):
    """Notes what it was told to expect before each measurement."""

    def expect(self, problem, configs):
        self.calls.append((problem, tuple(configs), "expected"))


def test_where_rivals_are_confirmed_two_processes_do_it(request_, rows, monkeypatch):
    monkeypatch.setitem(effort.EFFORTS, ("cpu", "quick"), replace(effort.named("quick"), rivals=3))
    backend = overlapping(rows, AsRaced)
    assert build(request_, backend=backend).measured == 7
    calls = backend.made[0].calls
    confirmed = [
        (place, problem, configs[-1])
        for place, (problem, configs, what) in enumerate(calls)
        if what != "expected" and isinstance(configs[-1], Code)
    ]
    assert len(confirmed) == 14
    # The process that measures it second has loaded it while the first one measured.
    last = {(problem, code): place for place, problem, code in confirmed}
    assert all(calls.index((problem, (code,), "expected")) < place for (problem, code), place in last.items())
    emitted = [row.problem for row in stored(request_.out) if row.detail == EMITTED]
    assert {emitted.count(problem) for problem in emitted} == {2}
    assert build(request_, backend=ReplayBackend(rows)).measured == 0  # Nothing is left to confirm.


def test_compilers_that_never_answer_are_not_waited_for_for_ever(request_, rows, monkeypatch):
    class Stuck(Never):
        """Nor are the kernels of two problems."""

        def prepare(self, jobs, ready=ignore):
            super().prepare([job for job in jobs if job.problem.m not in (2, 8)], ready)

    impatient = replace(effort.named("quick"), compile_s=0.1)
    monkeypatch.setattr(effort, "named", lambda name, kind="cpu": impatient)
    backend = overlapping(rows, Stuck, workers=2)
    assert build(request_, backend=backend).measured == 7
    assert sum(isinstance(configs[-1], Code) for made in backend.made for _, configs, _ in made.calls) == 7


def test_an_interrupt_waits_for_no_compiler(request_, rows):
    class Interrupt:
        def __init__(self):
            self.searched = set()

        def update(self, state):
            if state.phase == "racing":
                self.searched.add(state.current)
            elif len(self.searched) == 7 and state.phase in ("waiting", "compiling"):
                raise KeyboardInterrupt

    report = build(request_, Interrupt(), overlapping(rows, Never))
    assert (report.interrupted, report.measured) == (True, 7)
    assert report.seconds < scheduler.GRACE_S / 2


def test_no_lane_idles_while_a_problem_is_ready(request_, rows):
    class Uneven(Slow):
        """One problem takes as long as all others together."""

        def measure(self, problem, *args):
            time.sleep(0.6 if problem.m == 1 else 0.0)
            return super().measure(problem, *args)

    backend = overlapping(rows, Uneven, workers=2, chunk=4)
    assert build(request_, backend=backend).measured == 7
    raced = [{problem.m for problem, _, samples in made.calls if samples == 5} for made in backend.made]
    assert {1} in raced


class Three:
    """Three jobs of a build, all there at once."""

    chunk, overlap = 3, True

    def __init__(self, jobs):
        self.jobs, self.stop = jobs, threading.Event()

    def take(self):
        taken, self.jobs = self.jobs, []
        return taken


def test_winners_of_an_earlier_build_take_their_turn_with_races_and_those_of_this_one_go_first(problems):
    jobs = [Job(problem, Protocol("host", "cold", 1, 30), ()) for problem in problems[:5]]
    earlier = [replace(job, searched=(Outcome(ATEN, Status.ERROR),)) for job in jobs[3:]]
    scheduling = scheduler.Scheduler(
        Three(jobs[:3]), lambda jobs, ready: list(map(ready, jobs)), effort.named("quick"), 1
    )
    scheduling.won(scheduler.Winner(earlier[0], (), ()), earlier[0])
    scheduling.run()
    scheduling.won(scheduler.Winner(earlier[1], (), ()), None)
    assert scheduling.upcoming().job == earlier[0]
    scheduling.won(scheduler.Winner(jobs[0], (), ()), jobs[0])
    assert scheduling.upcoming().job == jobs[0]
    order = []
    while (task := scheduling.next(lambda: True)) is not None:
        order += [task.problem] if isinstance(task, Job) else [winner.job.problem for winner in task]
        scheduling.finished()
    assert order == [problems[place] for place in (0, 3, 0, 1, 2, 4)]
    assert scheduling.upcoming() is None


class Vanishing(Replay):
    """Its device goes away in the middle of problems of two rows, always, and once in that of problems of four."""

    gone = 0

    def measure(self, problem, configs, protocol, samples):
        if problem.m == 2 or (problem.m == 4 and samples == 30 and not Vanishing.gone):
            Vanishing.gone += problem.m == 4
            raise Lost("its workers went away", Status.CRASH)
        return super().measure(problem, configs, protocol, samples)


def test_what_loses_three_workers_is_set_aside_and_all_else_is_measured(request_, rows, problems):
    backend = overlapping(rows, Vanishing, workers=2)
    report = build(request_, backend=backend)
    assert (report.measured, report.left, Vanishing.gone) == (7, 0, 1)
    with Table.open(request_.out) as table:
        lost, other = table.rows(problems[1], backend.device), table.rows(problems[2], backend.device)
        assert table.verdict(problems[2], backend.device).speedup == pytest.approx(100 / 60)
    assert {(row.status, row.detail) for row in lost} == {(Status.CRASH, "set aside: its workers went away")}
    assert len(lost) == 4
    assert {row.status for row in other} == {Status.OK, Status.WRONG}
    assert build(request_, backend=ReplayBackend(rows)).before == 7


def test_a_worker_whose_device_is_away_takes_nothing(request_, rows):
    class Away(Replay):
        def available(self):
            return bool(backend.made) and self is backend.made[0]

    backend = ReplayBackend(rows, workers=2, replay=Away)
    assert build(request_, backend=backend).measured == 7
    assert not backend.made[1].calls
