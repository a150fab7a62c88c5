"""What a build does about jobs that an earlier one left half done, or that something else disturbed."""

import time
from dataclasses import replace

import pytest
from kit.replay import CPP, SPLIT_N, Emitting, Never, Replay, ReplayBackend, Watcher, record, stored, verdict

from gemmdb.generators.backend import ignore
from gemmdb.generators.build import scheduler
from gemmdb.generators.build.build import build
from gemmdb.generators.request import together
from gemmdb.kernels.config import ATEN
from gemmdb.table.measurement import DISTURBED, EMITTED, Status


@pytest.mark.parametrize("replay", [Replay, Emitting])
def test_winners_that_were_not_confirmed_are_confirmed_when_it_goes_on(request_, rows, monkeypatch, replay):
    monkeypatch.setattr(scheduler, "GRACE_S", 0.0)
    # A build without time waits GRACE_S for the code of its winners.
    first = build(replace(request_, minutes=0.05), backend=ReplayBackend(rows, replay=Never, overlap=True))
    assert first.measured == 7
    assert len(full_rows(request_.out, SPLIT_N)) == 7
    backend = ReplayBackend(rows, replay=replay)
    second = build(request_, backend=backend)
    assert (second.before, second.measured) == (0, 7)
    assert {samples for _, _, samples in backend.made[0].calls} == {30}  # Nothing is raced again.
    confirmed = full_rows(request_.out, SPLIT_N)
    assert len(confirmed) == 14
    assert sum(row.detail == EMITTED for row in confirmed) == (7 if replay is Emitting else 0)
    assert build(request_, backend=ReplayBackend(rows)).before == 7


def test_what_was_raced_before_and_could_not_be_confirmed_now_is_left(request_, rows, monkeypatch):
    monkeypatch.setattr(scheduler, "GRACE_S", 0.0)
    reports = []
    for _ in range(2):
        backend = ReplayBackend(rows, replay=Never, overlap=True)
        reports.append(build(replace(request_, minutes=0.05), backend=backend))
    assert [(report.measured, report.left, report.rows > 0) for report in reports] == [(7, 0, True), (0, 7, False)]


def test_a_pick_that_is_left_when_others_were_slower_once_more_is_not_raced_again(request_, rows):
    class Slower(Emitting):
        factor = 2.0

    build(request_, backend=ReplayBackend(rows, replay=Slower))
    assert build(request_, backend=ReplayBackend(rows, replay=Slower)).before == 7


@pytest.mark.parametrize(
    ("status", "detail", "again"),
    [
        (Status.OOM, "recorded", True),
        (Status.TIMEOUT, "recorded", True),
        (Status.ERROR, "AcceleratorError: CUDA error: out of memory", True),
        (Status.ERROR, "recorded", False),
    ],
)
def test_a_candidate_that_was_disturbed_is_tried_once_more(request_, rows, status, detail, again):
    broken = [
        replace(record(row.problem, row.config, 0.0, status), detail=detail) if row.config == CPP else row
        for row in rows
    ]
    build(request_, backend=ReplayBackend(broken))
    backend = ReplayBackend(broken)
    assert build(request_, backend=backend).measured == (7 if again else 0)
    if again:
        raced = {configs for _, configs, samples in backend.made[0].calls if samples == 5}
        assert raced == {(ATEN, SPLIT_N, CPP)}
    assert build(request_, backend=ReplayBackend(broken)).measured == 0


def test_one_that_was_disturbed_counts_once_it_is_measured(request_, rows, problems):
    broken = [record(row.problem, row.config, 0.0, Status.OOM) if row.config == SPLIT_N else row for row in rows]
    build(request_, backend=ReplayBackend(broken))
    assert build(request_, backend=ReplayBackend(rows)).measured == 7
    assert verdict(request_.out, problems[2]).pick == SPLIT_N


def full_rows(path, config):
    return [row for row in stored(path) if row.config == config and row.status is Status.OK]


def busy(rows):
    """The same rows, as a busy machine gives them."""
    return [replace(row, detail=DISTURBED) if row.times else row for row in rows]


def test_what_a_busy_machine_timed_decides_nothing_and_is_timed_again(request_, rows, problems):
    first = build(request_, backend=ReplayBackend(busy(rows)))
    assert (first.measured, first.disturbed) == (7, 21)
    assert "21 of 28 timings were disturbed and are not used" in first.notes[0]
    assert verdict(request_.out, problems[3]).pick == ATEN
    second = build(request_, backend=ReplayBackend(rows))
    assert (second.before, second.measured, second.disturbed, second.notes) == (0, 7, 0, ())
    assert verdict(request_.out, problems[3]).pick == SPLIT_N
    again = ReplayBackend(rows)
    assert build(request_, backend=again).before == 7
    assert again.made == []


def test_a_confirmation_on_a_busy_machine_is_done_again(request_, rows, problems):
    class BusyAtTheEnd(Replay):
        def _outcome(self, problem, config):
            found = super()._outcome(problem, config)
            return replace(found, disturbed=bool(found.times and self._more))

    build(request_, backend=ReplayBackend(rows, replay=BusyAtTheEnd))
    backend = ReplayBackend(rows)
    assert build(request_, backend=backend).measured == 7
    assert {samples for _, _, samples in backend.made[0].calls} == {30}  # Nothing is raced again.
    assert build(request_, backend=ReplayBackend(rows)).measured == 0


def test_a_gpu_that_others_use_marks_all(request_, rows, monkeypatch):
    monkeypatch.setattr("gemmdb.generators.measure.quiet.PATIENCE_S", 0.0)
    backend = ReplayBackend(rows)
    backend.busy = lambda: "another program keeps GPU 0 busy (63%)"
    report = build(request_, backend=backend)
    assert report.disturbed == sum(report.statuses[status] for status in ("ok", "slow") if status in report.statuses)
    assert "GPU 0 busy (63%)" in report.notes[0]


class Occupied(ReplayBackend):
    """A machine that others use while anyone asks."""

    def occupied(self) -> str:
        return "other programs keep 2.0 cores busy (cc1plus 2.0)"


def test_a_machine_that_is_always_busy_is_not_tried_for_ever(request_, rows, problems):
    """Once it is idle, it is tried again: two builds on a busy machine left ATen for good, while the advice was to run
    the build again when the machine is idle."""
    measured = [build(request_, backend=Occupied(busy(rows))).measured for _ in range(3)]
    assert measured == [7, 7, 0]
    waits = build(replace(request_, wait_s=0.01), backend=Occupied(rows))
    assert (waits.measured, waits.left, waits.stopped) == (0, 7, Occupied(rows).occupied())
    assert build(request_, backend=ReplayBackend(rows)).measured == 7
    assert verdict(request_.out, problems[3]).pick == SPLIT_N
    assert build(request_, backend=ReplayBackend(rows)).measured == 0


def test_a_busy_machine_is_not_measured_on_unless_asked_for(request_, rows):
    patient = replace(request_, wait_s=0.01)
    backend = Occupied(rows)
    first = build(patient, backend=backend)
    assert (first.stopped, first.measured, first.rows) == (backend.occupied(), 0, 0)
    assert build(patient, backend=ReplayBackend(rows)).stopped == ""
    assert build(request_, backend=Occupied(rows)).stopped == ""


def test_waiting_takes_nothing_of_the_time_limit_and_nothing_of_what_is_left(request_, rows, monkeypatch):
    """`--wait 1h` of a command to paste has the budget of the command that stopped."""
    monkeypatch.setattr("gemmdb.generators.measure.quiet.POLL_S", 0.2)

    class Occupied(ReplayBackend):
        asked = 0

        def occupied(self) -> str:
            self.asked += 1
            return "other programs keep 2.0 cores busy" if self.asked < 10 else ""

    watcher = Watcher()
    done = build(replace(request_, wait_s=60.0, minutes=1.5 / 60), watcher, Occupied(rows))
    assert (done.stopped, done.measured, done.left) == ("", 7, 0)
    assert done.seconds < 1.5
    left = [state.eta_s for state in watcher.states if state.phase.startswith("waiting for a quiet machine")]
    assert len(left) == 9
    assert left == pytest.approx([left[0]] * 9, abs=0.5)


def test_a_machine_that_becomes_busy_ends_the_build(request_, rows):
    done = build(replace(request_, wait_s=0.01), backend=ReplayBackend(busy(rows)))
    assert done.stopped == "other programs disturbed the timings"
    assert build(replace(request_, out=request_.out.with_name("b.db")), backend=ReplayBackend(busy(rows))).stopped == ""


def test_what_was_disturbed_is_told_once_for_all_rounds(request_, rows):
    first = build(request_, backend=ReplayBackend(busy(rows)))
    both = together(first, first)
    assert both.notes == (
        "other programs used the machine: 42 of 56 timings were disturbed and are not used;"
        " run the same command again when the machine is idle",
    )
    assert both.document()["warnings"] == both.notes


def test_ctrl_c_while_it_waits_measures_nothing(request_, rows):
    class Interrupted(ReplayBackend):
        def occupied(self) -> str:
            raise KeyboardInterrupt

    done = build(replace(request_, wait_s=60.0), backend=Interrupted(rows))
    assert (done.interrupted, done.measured, done.rows) == (True, 0, 0)


def test_while_its_first_jobs_compile_a_build_does_not_say_that_it_waits(request_, rows):
    class Compiling(Replay):
        def prepare(self, jobs, ready=ignore):
            time.sleep(0.3)  # The worker has said by now that it waits.
            super().prepare(jobs, ready)

    watcher = Watcher()
    build(request_, watcher, ReplayBackend(rows, replay=Compiling))
    phases = [state.phase for state in watcher.states]
    first = phases.index("compiling")
    assert set(phases[first : phases.index("racing")]) == {"compiling"}
