"""The order and the time limits of live tuning, with recorded times in place of a device."""

import time
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from kit.replay import Replay, ReplayBackend, stored, verdict

from gemmdb.generators.live import process
from gemmdb.inductor.benchmark import client
from gemmdb.kernels.config import ATEN
from gemmdb.table.measurement import Status


class Slow(Replay):
    """A device whose process needs `starts_s` to start, and that never compiles some candidates."""

    starts_s = 0.0
    never: tuple = ()

    def __init__(self, rows):
        super().__init__(rows)
        self.started = time.monotonic() + self.starts_s

    def prepare(self, jobs, ready):
        for one in jobs:
            if all(self.compiled(one.problem, config) for config in one.legal):
                ready(one)

    def ready(self, limit_s):
        time.sleep(max(min(limit_s, self.started - time.monotonic()), 0))
        return time.monotonic() >= self.started

    def compiled(self, problem, config):
        return (problem.m, config) not in self.never


@pytest.fixture
def tune(rows, monkeypatch, tmp_path):
    """A function that tunes problems from recorded rows; returns the result, and the measurer with its calls."""
    table = tmp_path / "user.db"

    def tune(problems, limit_s=20.0, compile_s=0.05, recorded=rows, **device):
        backend = ReplayBackend(recorded, replay=type("Device", (Slow,), device), overlap=True)
        monkeypatch.setattr(process.backends, "backend_for", lambda device: backend)
        candidates = tuple(dict.fromkeys(row.config for row in recorded if row.config != ATEN))
        requests = [
            client.Request(problem, backend.device, table, candidates, 100.0, compile_s=compile_s)
            for problem in problems
        ]
        tuned = process.Tuner(backend.device).tune(requests, time.monotonic() + limit_s)
        return tuned, backend.made[0]

    tune.table = table
    return tune


def order(measurer):
    """The problems in the order in which they were measured."""
    return list(dict.fromkeys(problem for problem, _, _ in measurer.calls))


def measured(path):
    return {(row.problem, row.config) for row in stored(path)}


def test_problems_are_measured_in_the_order_of_the_requests(tune, problems):
    wanted = problems[::-1]
    tuned, measurer = tune(wanted)
    assert order(measurer) == wanted
    assert set(tuned.verdicts) == set(problems)
    assert not tuned.late
    assert set(tuned.spent) == {"start", "compile", "measure"}


def test_when_time_is_over_nothing_is_begun(tune, problems):
    tuned, measurer = tune(problems, limit_s=-1.0)
    assert (dict(tuned.verdicts), tuned.late, measurer.calls, measured(tune.table)) == ({}, True, [], set())


def test_what_is_compiled_later_is_measured_later(tune, problems, rows):
    other = rows[1].config
    tuned, measurer = tune(problems, never=((problems[0].m, other),))
    assert order(measurer) == [*problems[1:], problems[0]]
    assert not tuned.late
    # Without the candidate that did not come in time.
    tried = {config for problem, configs, _ in measurer.calls if problem == problems[0] for config in configs}
    assert ATEN in tried
    assert other not in tried
    assert (problems[0], other) not in measured(tune.table)


def test_whoever_is_patient_waits_for_all_candidates(tune, problems, rows):
    tuned, measurer = tune(problems[:1], limit_s=0.3, compile_s=5.0, never=((problems[0].m, rows[1].config),))
    assert (tuned.late, tuned.starting, measurer.calls) == (True, False, [])


@pytest.mark.parametrize("kept", [0, 1])
def test_aten_alone_decides_nothing(tune, problems, rows, kept):
    """A row of ATen alone would be a verdict: that ATen is the best."""
    configs = [row.config for row in rows if row.problem == problems[0]]
    never = configs[1:] if kept == 0 else configs[:1]
    tuned, measurer = tune(problems[:1], limit_s=0.3, never=tuple((problems[0].m, config) for config in never))
    assert (tuned.late, measurer.calls, measured(tune.table)) == (True, [], set())


def test_a_process_that_is_still_starting_says_so(tune, problems):
    start = time.monotonic()
    tuned, measurer = tune(problems, limit_s=0.3, starts_s=60.0)
    assert time.monotonic() - start < 10
    assert (tuned.late, tuned.starting, tuned.waited, measurer.calls) == (True, True, False, [])
    tuned, _ = tune(problems, starts_s=0.2)
    assert (tuned.late, tuned.starting) == (False, False)
    assert tuned.spent["start"] >= 0.1


def fused(rows, alone_us):
    """The rows of GEMMs with an epilogue, and ATen's on the GEMMs alone."""
    with_epilogue = [replace(row, problem=replace(row.problem, fusion="pointwise")) for row in rows]
    aten = [row for row in rows if row.config == ATEN]
    times = replace(aten[0].times, median_us=alone_us, low_us=alone_us, high_us=alone_us, aten_us=alone_us)
    return with_epilogue + [replace(row, times=times) for row in aten]


@pytest.mark.parametrize(("alone_us", "left"), [(90.0, 2), (70.0, 1), (50.0, 0)])
def test_a_fused_kernel_must_not_be_slower_than_aten_without_the_epilogue(tune, rows, alone_us, left):
    """ATen takes 100 us with the epilogue; two right candidates take 80 and 60, and a third is wrong."""
    recorded = fused(rows, alone_us)
    problem = recorded[0].problem
    tuned, _ = tune([problem], recorded=recorded)
    found = measured(tune.table)
    right = [row.config for row in recorded if row.problem == problem and row.status is Status.OK]
    assert sum((problem, config) in found for config in right) == 1 + left
    assert (replace(problem, fusion="none"), ATEN) in found
    assert (tuned.verdicts[problem].pick == ATEN) is (left == 0)
    assert verdict(tune.table, problem).pick == tuned.verdicts[problem].pick  # The next process finds the same.


def test_without_times_of_aten_alone_no_fused_kernel_is_served(tune, rows):
    recorded = [row for row in fused(rows, 90.0) if row.problem.fusion == "pointwise"]
    tuned, _ = tune([recorded[0].problem], recorded=recorded)
    assert tuned.verdicts[recorded[0].problem].pick == ATEN


def test_where_aten_is_the_best_it_is_not_timed_again(tune, rows):
    recorded = [replace(row, times=replace(row.times, median_us=150.0, low_us=150.0, high_us=150.0))
                if row.config != ATEN and row.times else row for row in fused(rows, 90.0)]  # fmt: skip
    problem = recorded[0].problem
    tuned, measurer = tune([problem], recorded=recorded)
    assert tuned.verdicts[problem].pick == ATEN
    assert order(measurer) == [problem]
