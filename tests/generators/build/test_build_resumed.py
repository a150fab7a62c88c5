"""What a build does about jobs that an earlier one left half done, or that something else disturbed."""

from dataclasses import replace

import pytest

from gemmdb.generators.backend import ignore
from gemmdb.generators.build import scheduler
from gemmdb.generators.build.build import build
from gemmdb.generators.measure.cpu.space import AUTO, template
from gemmdb.generators.measure.replay import Replay
from gemmdb.kernels.config import ATEN, Config
from gemmdb.table.measurement import DISTURBED, EMITTED, Status
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

CPP, SPLIT_N = template(AUTO, AUTO), template((1, 2, 1), AUTO)


class Code(Config):
    """What a compiler emits for a config."""

    def __eq__(self, other):
        return isinstance(other, Code) and super().__eq__(other)

    __hash__ = Config.__hash__


class Emitting(Replay):
    """Measures winners as emitted code, which takes as long."""

    def emitted(self, config):
        return config if config == ATEN else Code(config.backend, config.kernel, config.params)

    def _outcome(self, problem, config):
        plain = Config(config.backend, config.kernel, config.params)
        return replace(super()._outcome(problem, plain), config=config)


class Stopped(Emitting):
    """Whose winners' code is not compiled before the build is stopped."""

    def prepare(self, jobs, ready=ignore):
        super().prepare([job for job in jobs if not any(isinstance(config, Code) for config in job.legal)], ready)


@pytest.mark.parametrize("replay", [Replay, Emitting])
def test_winners_that_were_not_confirmed_are_confirmed_when_it_goes_on(
    request_, replay_backend, rows, monkeypatch, replay
):
    monkeypatch.setattr(scheduler, "GRACE_S", 0.0)
    stopped = replay_backend(rows, replay=Stopped)
    stopped.overlap = True
    first = build(replace(request_, minutes=0.01), backend=stopped)
    assert first.measured == 7
    assert len(full_rows(request_.out, SPLIT_N)) == 7
    backend = replay_backend(rows, replay=replay)
    second = build(request_, backend=backend)
    assert (second.before, second.measured) == (0, 7)
    assert {samples for _, _, samples in backend.made[0].calls} == {30}  # Nothing is raced again.
    confirmed = full_rows(request_.out, SPLIT_N)
    assert len(confirmed) == 14
    assert sum(row.detail == EMITTED for row in confirmed) == (7 if replay is Emitting else 0)
    assert build(request_, backend=replay_backend(rows)).before == 7


def test_what_was_raced_before_and_could_not_be_confirmed_now_is_left(request_, replay_backend, rows, monkeypatch):
    monkeypatch.setattr(scheduler, "GRACE_S", 0.0)
    reports = []
    for _ in range(2):
        backend = replay_backend(rows, replay=Stopped)
        backend.overlap = True
        reports.append(build(replace(request_, minutes=0.01), backend=backend))
    assert [(report.measured, report.left, report.rows > 0) for report in reports] == [(7, 0, True), (0, 7, False)]


def test_a_pick_that_is_left_when_others_were_slower_once_more_is_not_raced_again(request_, replay_backend, rows):
    class Slower(Emitting):
        def _outcome(self, problem, config):
            found = super()._outcome(problem, config)
            if not isinstance(config, Code) or found.times is None:
                return found
            us = 2 * found.times.median_us
            return replace(found, times=replace(found.times, median_us=us, low_us=us, high_us=us))

    build(request_, backend=replay_backend(rows, replay=Slower))
    assert build(request_, backend=replay_backend(rows, replay=Slower)).before == 7


@pytest.mark.parametrize(
    ("status", "detail", "again"),
    [
        (Status.OOM, "recorded", True),
        (Status.TIMEOUT, "recorded", True),
        (Status.ERROR, "AcceleratorError: CUDA error: out of memory", True),
        (Status.ERROR, "recorded", False),
    ],
)
def test_a_candidate_that_was_disturbed_is_tried_once_more(
    request_, replay_backend, recorded, rows, problems, status, detail, again
):
    broken = [
        replace(recorded(row.problem, row.config, 0.0, status), detail=detail) if row.config == CPP else row
        for row in rows
    ]
    build(request_, backend=replay_backend(broken))
    backend = replay_backend(broken)
    assert build(request_, backend=backend).measured == (7 if again else 0)
    if again:
        raced = {configs for _, configs, samples in backend.made[0].calls if samples == 5}
        assert raced == {(ATEN, SPLIT_N, CPP)}
    assert build(request_, backend=replay_backend(broken)).measured == 0


def test_one_that_was_disturbed_counts_once_it_is_measured(request_, replay_backend, recorded, rows, problems):
    broken = [recorded(row.problem, row.config, 0.0, Status.OOM) if row.config == SPLIT_N else row for row in rows]
    build(request_, backend=replay_backend(broken))
    assert build(request_, backend=replay_backend(rows)).measured == 7
    assert Table.open(request_.out).verdict(problems[2], replay_backend.device).pick == SPLIT_N


def full_rows(path, config):
    with Store.open(path):
        found = Table.open(path)
    rows = [row for row in found.measurements() if row.config == config and row.status is Status.OK]
    found.close()
    return rows


def busy(rows):
    """The same rows, as a busy machine gives them."""
    return [replace(row, detail=DISTURBED) if row.times else row for row in rows]


def verdict(request_, replay_backend, problem):
    with Table.open(request_.out) as table:
        return table.verdict(problem, replay_backend.device)


def test_what_a_busy_machine_timed_decides_nothing_and_is_timed_again(request_, replay_backend, rows, problems):
    first = build(request_, backend=replay_backend(busy(rows)))
    assert (first.measured, first.disturbed) == (7, 21)
    assert "21 of 28 new rows are marked as disturbed" in first.warnings[0]
    assert verdict(request_, replay_backend, problems[3]).pick == ATEN
    second = build(request_, backend=replay_backend(rows))
    assert (second.before, second.measured, second.disturbed, second.warnings) == (0, 7, 0, ())
    assert verdict(request_, replay_backend, problems[3]).pick == SPLIT_N
    again = replay_backend(rows)
    assert build(request_, backend=again).before == 7
    assert again.made == []


def test_a_machine_that_is_always_busy_is_not_tried_for_ever(request_, replay_backend, rows):
    measured = [build(request_, backend=replay_backend(busy(rows))).measured for _ in range(3)]
    assert measured == [7, 7, 0]


def test_a_confirmation_on_a_busy_machine_is_done_again(request_, replay_backend, rows, problems):
    class BusyAtTheEnd(Replay):
        def _outcome(self, problem, config):
            found = super()._outcome(problem, config)
            return replace(found, disturbed=bool(found.times and self._more))

    build(request_, backend=replay_backend(rows, replay=BusyAtTheEnd))
    backend = replay_backend(rows)
    assert build(request_, backend=backend).measured == 7
    assert {samples for _, _, samples in backend.made[0].calls} == {30}  # Nothing is raced again.
    assert build(request_, backend=replay_backend(rows)).measured == 0


def test_a_gpu_that_others_use_marks_all(request_, replay_backend, rows, monkeypatch):
    monkeypatch.setattr("gemmdb.generators.build.run.PATIENCE_S", 0.0)
    backend = replay_backend(rows)
    backend.busy = lambda: "another program keeps GPU 0 busy (63%)"
    report = build(request_, backend=backend)
    assert report.disturbed == sum(report.statuses[status] for status in ("ok", "slow") if status in report.statuses)
    assert "GPU 0 busy (63%)" in report.warnings[0]
