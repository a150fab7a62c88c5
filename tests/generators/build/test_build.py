"""The queue of a build, over recorded outcomes: resuming, sharing, interrupting, failing."""

import json
import time
from pathlib import Path

import pytest

from gemmdb.errors import GemmdbError
from gemmdb.generators.backend import Candidate
from gemmdb.generators.build.build import BuildRequest, build
from gemmdb.generators.measure.cpu.space import AUTO, template
from gemmdb.generators.measure.replay import Replay
from gemmdb.generators.progress import State
from gemmdb.kernels.config import ATEN
from gemmdb.rejected import Rejected
from gemmdb.table.measurement import Status
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

CPP, SPLIT_N = template(AUTO, AUTO), template((1, 2, 1), AUTO)


class Watcher:
    """Keeps every state."""

    def __init__(self):
        self.states: list[State] = []

    def update(self, state):
        self.states.append(state)


def contents(path: Path) -> set[tuple[str, str, str]]:
    table = Table.open(path)
    found = {(row.problem.text, row.config.text, row.status.value) for row in table.measurements()}
    table.close()
    return found


def count(path: Path) -> int:
    table = Table.open(path)
    found = sum(1 for _ in table.measurements())
    table.close()
    return found


def test_every_candidate_of_every_problem_becomes_a_row(request_, replay_backend, rows, problems):
    report = build(request_, backend=replay_backend(rows))
    found = contents(request_.out)
    assert len(found) == 4 * len(problems)
    assert report.statuses == {"illegal": 1, "ok": 5 * len(problems), "wrong": len(problems) - 1}
    assert (report.problems, report.jobs, report.measured, report.before) == (7, 7, 7, 0)
    assert report.rows == 6 * len(problems)  # The winner and ATen were measured once more.


def test_the_verdict_is_there_and_confirmed(request_, replay_backend, rows, problems):
    backend = replay_backend(rows)
    build(request_, backend=backend)
    table = Table.open(request_.out)
    verdict = table.verdict(problems[4], backend.device)
    table.close()
    assert verdict.pick.values["threads_n"] == 2
    assert verdict.speedup == pytest.approx(100 / 60)
    assert 4 <= backend.made[0].renewed < 7  # Once per chunk of two jobs, unless a worker is faster than the scheduler.
    assert backend.closed


def test_building_again_measures_nothing(request_, replay_backend, rows):
    build(request_, backend=replay_backend(rows))
    digest, before = Table.open(request_.out).digest, request_.out.read_bytes()
    again = replay_backend(rows)
    report = build(request_, backend=again)
    assert (report.before, report.measured, report.rows) == (7, 0, 0)
    assert again.made == []
    assert Table.open(request_.out).digest == digest
    assert request_.out.read_bytes() == before


@pytest.mark.parametrize("status", [Status.TIMEOUT, Status.OOM])
def test_a_job_whose_aten_did_not_get_its_turn_is_tried_again(
    request_, replay_backend, recorded, rows, problems, status
):
    broken = [
        recorded(row.problem, row.config, 0.0, status) if (row.problem, row.config) == (problems[3], ATEN) else row
        for row in rows
    ]
    first = build(request_, backend=replay_backend(broken))
    assert first.measured == 7
    assert Table.open(request_.out).verdict(problems[3], replay_backend.device) is None
    second = build(request_, backend=replay_backend(broken))
    assert (second.before, second.measured) == (6, 1)
    assert build(request_, backend=replay_backend(rows)).measured == 1
    assert Table.open(request_.out).verdict(problems[3], replay_backend.device) is not None
    assert build(request_, backend=replay_backend(rows)).measured == 0


def test_an_aten_that_fails_for_good_is_not_tried_again(request_, replay_backend, recorded, rows, problems):
    broken = [recorded(row.problem, row.config, 0.0, Status.ERROR) if row.config == ATEN else row for row in rows]
    build(request_, backend=replay_backend(broken))
    assert build(request_, backend=replay_backend(rows)).measured == 0


def test_more_shapes_and_another_effort_are_added(request_, replay_backend, rows, problems, tmp_path):
    few = tmp_path / "few.jsonl"
    few.write_text(json.dumps({"problem": problems[0].text}))
    build(BuildRequest(shapes=str(few), out=request_.out), backend=replay_backend(rows))
    assert build(request_, backend=replay_backend(rows)).measured == 6
    full = BuildRequest(shapes=str(few), out=request_.out, effort="full")
    assert build(full, backend=replay_backend(rows)).measured == 2  # cold and hot


def test_only_new_candidates_are_measured_with_aten_and_the_best_so_far(
    request_, replay_backend, recorded, rows, problems
):
    build(request_, backend=replay_backend(rows))
    new = template((1, 4, 1), AUTO)

    class Wider:
        def candidates(self, problem, device, effort):
            return [*replay_backend.space.candidates(problem, device, effort), Candidate(new)]

    backend = replay_backend([*rows, *(recorded(problem, new, 50.0) for problem in problems)])
    backend.space = Wider()
    report = build(request_, backend=backend)
    assert (report.before, report.measured) == (0, 7)
    known = (ATEN, SPLIT_N, CPP)
    assert {configs for _, configs, samples in backend.made[0].calls if samples == 5} == {(*known, new)}
    assert Table.open(request_.out).verdict(problems[2], backend.device).pick == new
    assert build(request_, backend=backend).measured == 0


def test_what_a_newer_estimate_lets_in_is_not_measured_beside_as_many_of_its_kernel(
    request_, replay_backend, recorded, rows, problems
):
    build(request_, backend=replay_backend(rows))
    new = template((1, 4, 1), AUTO)

    class Otherwise:
        def __init__(self, dropped):
            self.dropped = dropped

        def candidates(self, problem, device, effort):
            known = replay_backend.space.candidates(problem, device, effort)
            return [*(c for c in known if c.config not in self.dropped), Candidate(new, estimated=True)]

    backend = replay_backend([*rows, *(recorded(problem, new, 50.0) for problem in problems)])
    backend.space = Otherwise({CPP})  # In its place: as many configs as were measured, of the same kernel.
    assert build(request_, backend=backend).measured == 0
    backend.space = Otherwise(())  # One more than were measured.
    assert build(request_, backend=backend).measured == 7


def test_a_new_candidate_that_is_illegal_needs_no_timing(request_, replay_backend, rows):
    build(request_, backend=replay_backend(rows))
    new = template((1, 4, 1), AUTO)

    class Wider:
        def candidates(self, problem, device, effort):
            return [*replay_backend.space.candidates(problem, device, effort), Candidate(new, Rejected("too wide"))]

    backend = replay_backend(rows)
    backend.space = Wider()
    report = build(request_, backend=backend)
    assert (report.measured, report.statuses) == (7, {"illegal": 7})
    assert backend.made[0].calls == []


def test_progress(request_, replay_backend, rows):
    watcher = Watcher()
    build(request_, watcher, replay_backend(rows))
    done = [state.done for state in watcher.states]
    assert done == sorted(done)
    assert (done[0], done[-1], watcher.states[-1].phase) == (0, 7, "finished")
    assert {state.phase for state in watcher.states} >= {"starting", "compiling", "racing", "confirming", "finished"}
    assert any(state.eta_s is not None and state.current is not None for state in watcher.states)


class Slow(Replay):
    """Takes its time, so that a build can be hit in the middle."""

    delay = 0.05

    def measure(self, *args):
        time.sleep(self.delay)
        return super().measure(*args)


def test_several_lanes_share_the_work(request_, replay_backend, rows):
    backend = replay_backend(rows, workers=3, replay=Slow)
    report = build(request_, backend=backend)
    assert report.measured == 7
    measured = [problem for replay in backend.made for problem, _, samples in replay.calls if samples == 5]
    assert len(measured) == len(set(measured)) == 7
    assert sum(bool(replay.calls) for replay in backend.made) == 3


def test_gpus_limits_the_lanes(request_, replay_backend, rows):
    backend = replay_backend(rows, workers=3)
    build(BuildRequest(shapes=request_.shapes, out=request_.out, gpus=1), backend=backend)
    assert len(backend.made) == 1


def test_ctrl_c_keeps_everything(request_, replay_backend, rows):
    class Interrupt(Watcher):
        def update(self, state):
            super().update(state)
            if state.done == 3 and self.states[-2].done == 2:
                raise KeyboardInterrupt

    watcher = Interrupt()
    backend = replay_backend(rows, replay=Slow)
    report = build(request_, watcher, backend)
    assert report.interrupted
    assert report.measured >= 3
    assert backend.closed
    kept = count(request_.out)
    assert kept == report.rows > 0
    rest = build(request_, backend=replay_backend(rows))
    assert report.measured - 2 <= rest.before <= report.measured  # A chunk may be raced and not confirmed yet.
    assert rest.measured == 7 - rest.before
    assert build(request_, backend=replay_backend(rows)).before == 7


def test_ctrl_c_in_the_middle_of_storing_keeps_that_too(request_, replay_backend, rows, monkeypatch):
    original, added = Store.add, []

    def add(self, rows):
        added.append(rows)
        if len(added) == 3:
            raise KeyboardInterrupt
        return original(self, rows)

    monkeypatch.setattr(Store, "add", add)
    report = build(request_, backend=replay_backend(rows, replay=Slow))
    assert report.interrupted
    kept = {row.text for row in Table.open(request_.out).measurements()}
    assert {row.text for row in added[2]} <= kept


def test_a_worker_that_cannot_work_ends_the_build(request_, replay_backend, rows):
    class Broken(Replay):
        def measure(self, problem, *args):
            if problem.m == 8:
                raise GemmdbError("no worker")
            return super().measure(problem, *args)

    with pytest.raises(GemmdbError, match="no worker"):
        build(request_, backend=replay_backend(rows, replay=Broken))
    assert count(request_.out) > 0
    assert build(request_, backend=replay_backend(rows)).before == 2  # Of the third, the winner is not confirmed.
