"""The queue of a build, over recorded outcomes: resuming, sharing, interrupting, failing."""

import json
from dataclasses import replace

import pytest
from kit.replay import (
    CPP,
    SPLIT_N,
    Replay,
    ReplayBackend,
    ReplaySpace,
    Slow,
    Watcher,
    contents,
    record,
    stored,
    verdict,
)

from gemmdb.errors import GemmdbError
from gemmdb.generators.backend import Candidate, ignore
from gemmdb.generators.build.build import BuildRequest, build
from gemmdb.generators.measure.cpu.space import AUTO, template
from gemmdb.kernels.config import ATEN
from gemmdb.rejected import Rejected
from gemmdb.table.measurement import Status
from gemmdb.table.writer import Store

NEW = template((1, 4, 1), AUTO)


def test_every_candidate_of_every_problem_becomes_a_row_and_the_verdict_is_confirmed(request_, rows, problems):
    backend, watcher = ReplayBackend(rows), Watcher()
    report = build(request_, watcher, backend)
    assert len(contents(request_.out)) == 4 * len(problems)
    assert report.statuses == {"illegal": 1, "ok": 5 * len(problems), "wrong": len(problems) - 1}
    assert (report.problems, report.jobs, report.measured, report.before) == (7, 7, 7, 0)
    assert report.rows == 6 * len(problems)  # The winner and ATen were measured once more.
    found = verdict(request_.out, problems[4])
    assert (found.pick, found.speedup) == (SPLIT_N, pytest.approx(100 / 60))
    assert 4 <= backend.made[0].renewed < 7  # Once per chunk of two jobs, unless a worker is faster than the scheduler.
    assert backend.closed
    assert [job.problem for job in backend.begun] == problems
    states = watcher.states
    done = [state.done for state in states]
    assert done == sorted(done)
    assert (done[0], done[-1], states[-1].phase, states[-1].eta_s) == (0, 7, "finished", 0.0)
    assert 7 * 5 < states[0].eta_s < 7 * 20
    assert report.expected_s == pytest.approx(states[0].eta_s)
    assert {state.phase for state in states} >= {"starting", "compiling", "racing", "confirming", "finished"}
    # A problem is done when it is confirmed.
    assert min(state.done for state in states if state.phase == "confirming") < 7
    assert any(state.eta_s is not None and state.current is not None for state in states)


def test_building_again_measures_nothing(request_, rows):
    build(request_, backend=ReplayBackend(rows))
    before, again = request_.out.read_bytes(), ReplayBackend(rows)
    report = build(request_, backend=again)
    assert (report.before, report.measured, report.rows) == (7, 0, 0)
    assert again.made == []
    assert request_.out.read_bytes() == before


@pytest.mark.parametrize("status", [Status.TIMEOUT, Status.OOM])
def test_a_job_whose_aten_did_not_get_its_turn_is_tried_again(request_, rows, problems, status):
    failed = problems[3], ATEN
    broken = [record(*failed, 0.0, status) if (row.problem, row.config) == failed else row for row in rows]
    assert build(request_, backend=ReplayBackend(broken)).measured == 7
    assert verdict(request_.out, problems[3]) is None
    second = build(request_, backend=ReplayBackend(broken))
    assert (second.before, second.measured) == (6, 1)
    assert build(request_, backend=ReplayBackend(rows)).measured == 1
    assert verdict(request_.out, problems[3]) is not None
    assert build(request_, backend=ReplayBackend(rows)).measured == 0


def test_an_aten_that_fails_for_good_is_not_tried_again(request_, rows):
    broken = [record(row.problem, row.config, 0.0, Status.ERROR) if row.config == ATEN else row for row in rows]
    build(request_, backend=ReplayBackend(broken))
    assert build(request_, backend=ReplayBackend(rows)).measured == 0


def test_more_shapes_and_another_effort_are_added(request_, rows, problems, tmp_path):
    few = tmp_path / "few.jsonl"
    few.write_text(json.dumps({"problem": problems[0].text}))
    build(BuildRequest(shapes=str(few), out=request_.out), backend=ReplayBackend(rows))
    assert build(request_, backend=ReplayBackend(rows)).measured == 6
    full = BuildRequest(shapes=str(few), out=request_.out, effort="full")
    assert build(full, backend=ReplayBackend(rows)).measured == 2  # cold and hot


def test_only_new_candidates_are_measured_with_aten_and_the_best_so_far(request_, rows, problems):
    build(request_, backend=ReplayBackend(rows))
    more = [*rows, *(record(problem, NEW, 50.0) for problem in problems)]
    backend = ReplayBackend(more, space=ReplaySpace(Candidate(NEW)))
    report = build(request_, backend=backend)
    assert (report.before, report.measured) == (0, 7)
    assert {configs for _, configs, samples in backend.made[0].calls if samples == 5} == {(ATEN, SPLIT_N, CPP, NEW)}
    assert verdict(request_.out, problems[2]).pick == NEW
    assert build(request_, backend=backend).measured == 0


def test_what_a_newer_estimate_lets_in_is_not_measured_beside_as_many_of_its_kernel(request_, rows, problems):
    build(request_, backend=ReplayBackend(rows))

    class Without(ReplaySpace):
        def candidates(self, *args):
            return [c for c in super().candidates(*args) if c.config != CPP]

    new = Candidate(NEW, estimated=True)
    backend = ReplayBackend([*rows, *(record(problem, NEW, 50.0) for problem in problems)])
    backend.space = Without(new)  # In its place: as many configs as were measured, of the same kernel.
    assert build(request_, backend=backend).measured == 0
    backend.space = ReplaySpace(new)  # One more than were measured.
    assert build(request_, backend=backend).measured == 7


def test_a_new_candidate_that_is_illegal_needs_no_timing(request_, rows):
    build(request_, backend=ReplayBackend(rows))
    backend = ReplayBackend(rows, space=ReplaySpace(Candidate(NEW, Rejected("too wide"))))
    report = build(request_, backend=backend)
    assert (report.measured, report.statuses) == (7, {"illegal": 7})
    assert backend.made[0].calls == []


@pytest.mark.parametrize(("gpus", "lanes"), [(None, 3), (1, 1)])
def test_several_lanes_share_the_work(request_, rows, gpus, lanes):
    backend = ReplayBackend(rows, workers=3, replay=Slow)
    report = build(replace(request_, arch="native", gpus=gpus), backend=backend)
    assert report.measured == 7
    measured = [problem for replay in backend.made for problem, _, samples in replay.calls if samples == 5]
    assert len(measured) == len(set(measured)) == 7
    assert [bool(replay.calls) for replay in backend.made] == [True] * lanes


def test_ctrl_c_keeps_everything(request_, rows):
    class Interrupt(Watcher):
        def update(self, state):
            super().update(state)
            if state.done == 3 and self.states[-2].done == 2:
                raise KeyboardInterrupt

    backend = ReplayBackend(rows, replay=Slow)
    report = build(request_, Interrupt(), backend)
    assert report.interrupted
    assert report.measured >= 3
    assert backend.closed
    assert len(stored(request_.out)) == report.rows > 0
    rest = build(request_, backend=ReplayBackend(rows))
    assert report.measured - 2 <= rest.before <= report.measured  # A chunk may be raced and not confirmed yet.
    assert rest.measured == 7 - rest.before
    assert build(request_, backend=ReplayBackend(rows)).before == 7


def test_ctrl_c_in_the_middle_of_storing_keeps_that_too(request_, rows, monkeypatch):
    original, added = Store.add, []

    def add(self, rows):
        added.append(rows)
        if len(added) == 3:
            raise KeyboardInterrupt
        return original(self, rows)

    monkeypatch.setattr(Store, "add", add)
    assert build(request_, backend=ReplayBackend(rows, replay=Slow)).interrupted
    assert {row.text for row in added[2]} <= {row.text for row in stored(request_.out)}


class Broken(Replay):
    def measure(self, problem, *args):
        if problem.m == 8:
            raise GemmdbError("no worker")
        return super().measure(problem, *args)


class Uncompiled(Replay):
    def prepare(self, jobs, ready=ignore):
        raise GemmdbError("no compiler")


@pytest.mark.parametrize(("replay", "workers", "message", "before"), [(Broken, 1, "no worker", 2),
                                                                    (Uncompiled, 2, "no compiler", 0)])  # fmt: skip
def test_a_worker_or_compiler_that_cannot_work_ends_the_build(request_, rows, replay, workers, message, before):
    with pytest.raises(GemmdbError, match=message):
        build(request_, backend=ReplayBackend(rows, workers=workers, replay=replay))
    assert bool(stored(request_.out)) == bool(before)
    # Of the third job, the winner is not confirmed.
    assert build(request_, backend=ReplayBackend(rows)).before == before
