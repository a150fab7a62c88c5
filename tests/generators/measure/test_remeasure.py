"""Remeasuring, over recorded outcomes."""

import time
from dataclasses import replace

import pytest
from kit.replay import CPP, DEVICE, TOOLCHAIN, Replay, Watcher

from gemmdb.devices import detect
from gemmdb.errors import InputError
from gemmdb.generators import estimate
from gemmdb.generators.backend import ignore
from gemmdb.generators.build.build import BuildRequest, build
from gemmdb.generators.files.pack import pack
from gemmdb.generators.measure import backends, quiet
from gemmdb.generators.measure.cuda.artifacts import Emitted
from gemmdb.generators.measure.remeasure import expected_of, remeasure, sample, sampled_of
from gemmdb.generators.measure.remeasured import holds
from gemmdb.kernels.config import ATEN
from gemmdb.kernels.default_mode import symbolic_form
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import DISTURBED, NOISY, Measurement, Protocol, Status, Times
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store


@pytest.fixture(autouse=True)
def unsteady(unknown_load, monkeypatch):
    """References may be unsteady here."""
    monkeypatch.setattr(quiet, "NOISY", NOISY)


@pytest.fixture
def table(shapes_file, tmp_path, replay_backend, rows):
    request = BuildRequest(shapes=str(shapes_file), out=tmp_path / "table.db")
    build(request, backend=replay_backend(rows))
    return request.out


def timed(row, factor=1.0, reach=0.01):
    """The same row with `factor` of its time, and an interval of `reach` of that to each side."""
    if row.times is None:
        return row
    us = row.times.median_us * factor
    return replace(row, times=Times(us, us * (1 - reach), us * (1 + reach), 30, row.times.aten_us))


def is_pick(row):
    return row.config.values.get("threads_n") == 2


CASES = {
    "the same times": (lambda row: row, (7, 0, 0), 21),
    "a pick that lost": (lambda row: timed(row, 2.0) if is_pick(row) else row, (0, 7, 0), 14),
    "narrow intervals": (lambda row: timed(row, reach=0.02), (7, 0, 0), 21),
    "twice as slow as ATen, with intervals that hold everything":
        (lambda row: timed(row, 3.4 if is_pick(row) else 1.0, 0.24), (0, 7, 0), 14),
    "wide intervals confirm nothing": (lambda row: timed(row, reach=0.24), (0, 0, 7), 21),
    "a pick that may be as slow as ATen":
        (lambda row: replace(row, times=Times(97.0, 96.0, 101.0, 30, 100.0)) if row.times and row.config != ATEN
         else row, (0, 0, 7), 7),
    "a busy machine": (lambda row: replace(row, detail=DISTURBED) if row.times else row, (0, 0, 7), 0),
    "an unsteady reference": (lambda row: timed(row, reach=0.3) if row.config == ATEN else row, (0, 0, 7), 0),
}  # fmt: skip
"""What has become of the rows; how many verdicts hold, fail, are unclear; how many rows are within the tolerance."""


@pytest.mark.parametrize("case", CASES)
def test_what_the_new_times_say_of_the_verdicts(table, replay_backend, rows, case):
    change, verdicts, within = CASES[case]
    result = remeasure(table, 100, backend=replay_backend(list(map(change, rows))))
    assert (result.held, result.failed, result.unclear) == verdicts
    disturbed = 21 if case in ("a busy machine", "an unsteady reference") else 0
    compared = 21 - disturbed
    assert (result.problems, result.rows, result.within, len(result.moved)) == (7, compared, within, compared - within)
    assert (result.disturbed, result.timed) == (disturbed, 21)
    if case == "a pick that lost":
        assert {(moved.recorded_us, moved.now_us) for moved in result.moved} == {(60.0, 120.0)}


def test_a_packed_table_is_timed_again_like_the_table_it_is_of(table, replay_backend, rows, tmp_path):
    pack(table, tmp_path / "packed.db")
    result = remeasure(tmp_path / "packed.db", 4, backend=replay_backend(rows), seed=1)
    assert (result.problems, result.held, result.rows, result.within) == (4, 4, 12, 12)
    slower = [timed(row, 1.5) for row in rows]
    one, other = (
        remeasure(path, 7, backend=replay_backend(slower), seed=1) for path in (table, tmp_path / "packed.db")
    )
    assert {(moved.problem, moved.config) for moved in one.moved} == {(m.problem, m.config) for m in other.moved}
    assert (one.held, one.failed, one.unclear) == (other.held, other.failed, other.unclear)


def test_all_devices_share_the_work(table, replay_backend, rows):
    backend = replay_backend(rows, workers=3)
    result = remeasure(table, 100, backend=backend)
    assert (result.problems, result.held, result.rows, result.within) == (7, 7, 21, 21)
    assert sorted(len(replay.calls) for replay in backend.made) == [2, 2, 3]
    assert remeasure(table, 1, backend=replay_backend(rows, workers=8)).problems == 1


def test_a_seed_draws_the_same_problems_again(table, replay_backend, rows):
    slower = [timed(row, 1.5) for row in rows]

    def drawn(seed):
        moved = remeasure(table, 3, backend=replay_backend(slower), seed=seed).moved
        return frozenset(one.problem for one in moved)

    assert all(drawn(seed) == drawn(seed) for seed in range(5))
    assert len({drawn(seed) for seed in range(20)}) > 1


def test_a_pick_that_fails_now_is_told_first(table, replay_backend, rows, problems):
    broken = [
        replace(row, status=Status.CRASH, times=None)
        if row.problem == problems[2] and is_pick(row)
        else timed(row, 1.05)
        for row in rows
    ]
    result = remeasure(table, 100, backend=replay_backend(broken))
    assert result.held == 6
    assert result.moved[0].now_us is None
    assert result.within == 0
    assert remeasure(table, 100, 0.1, replay_backend(broken)).within == result.rows - 1


def test_a_table_of_another_device_is_refused(table):
    with pytest.raises(InputError, match=r"is for Test CPU.*needs that device"):
        remeasure(table, 1)


@pytest.fixture
def made(monkeypatch, replay_backend, rows):
    """This machine has the CPU of the table, but uses another number of threads. The devices that backends were made
    for."""
    backend, found = replay_backend(rows), []
    monkeypatch.setattr(detect, "cuda", lambda: None)
    monkeypatch.setattr(detect, "cpu", lambda: replace(backend.device, units=backend.device.units + 3))
    monkeypatch.setattr(backends, "backend_for", lambda device: found.append(device) or backend)
    return found


def test_a_cpu_gets_the_threads_of_the_table(table, made, replay_backend, rows):
    """Ranks of torchrun use one thread each, and their table is checked from a shell that sets nothing."""
    assert remeasure(table, 4).held == 4
    assert made == [replay_backend(rows).device]


def test_a_cpu_of_several_numbers_of_threads_is_not_guessed(made, tmp_path, rows):
    table = tmp_path / "several.db"
    with Store(table) as store:
        store.add(replace(row, device=replace(row.device, units=units)) for row in rows for units in (1, 2))
    with pytest.raises(InputError, match="measured with 1 and 2 threads: set OMP_NUM_THREADS to one of them"):
        remeasure(table, 4)
    assert made == []


def test_a_table_without_rows_of_this_toolchain_is_refused(table, replay_backend, rows):
    backend = replay_backend(rows)
    backend.toolchain = replace(backend.toolchain, torch="2.14.0")
    with pytest.raises(InputError, match=r"no verdicts.*torch2\.14"):
        remeasure(table, 1, backend=backend)


def test_what_was_recorded_of_emitted_code_is_timed_as_emitted_code(
    shapes_file, tmp_path, replay_backend, rows, monkeypatch
):
    plain = Replay._outcome
    monkeypatch.setattr(Replay, "emitted", lambda self, config: Emitted.code_of(config))
    monkeypatch.setattr(Replay, "_outcome", lambda self, problem, c: plain(self, problem, getattr(c, "plain", c)))
    out = tmp_path / "emitted.db"
    build(BuildRequest(shapes=str(shapes_file), out=out), backend=replay_backend(rows))
    backend = replay_backend(rows)
    result = remeasure(out, 100, backend=backend)
    assert (result.problems, result.held) == (7, 7)
    (replay,) = backend.made
    for _, configs, _ in replay.calls:
        assert sum(isinstance(config, Emitted) for config in configs) == 1, "of each problem the pick was confirmed"


def test_what_others_do_on_the_devices_is_asked_first(table, replay_backend, rows, monkeypatch):
    monkeypatch.setattr("gemmdb.generators.measure.quiet.PATIENCE_S", 0.0)
    backend = replay_backend(rows)
    backend.busy = lambda: "another program keeps GPU 0 busy (63%)"
    result = remeasure(table, 100, backend=backend)
    assert (result.unclear, result.busy) == (7, "another program keeps GPU 0 busy (63%)")


def test_a_busy_machine_is_not_measured_on(table, replay_backend, rows, monkeypatch):
    busy = replay_backend(rows)
    monkeypatch.setattr(busy, "occupied", lambda: "other programs keep 2 cores busy")
    stopped = remeasure(table, 1, backend=busy, wait_s=0.01)
    assert (stopped.stopped, stopped.problems, len(stopped.rest)) == ("other programs keep 2 cores busy", 0, 1)
    assert busy.made == []
    result = remeasure(table, 7, backend=replay_backend(rows), wait_s=0.01, before=stopped)
    assert (result.stopped, result.problems, result.rest) == ("", 1, ())


def test_where_others_disturb_every_time_it_stops_and_goes_on_with_the_rest(table, replay_backend, rows, problems):
    """As a build does: minutes of times that nobody may use are not taken."""
    quiet_at = set(problems[:2])
    disturbed = [replace(one, detail=DISTURBED) if one.times and one.problem not in quiet_at else one for one in rows]
    stopped = remeasure(table, 7, backend=replay_backend(disturbed), seed=1, wait_s=1.0)
    assert stopped.stopped == "other programs disturbed the timings"
    assert 0 <= stopped.problems <= 2
    assert (stopped.disturbed, stopped.unclear, stopped.problems + len(stopped.rest)) == (0, 0, 7)
    whole = remeasure(table, 7, backend=replay_backend(rows), wait_s=1.0, before=stopped)
    assert (whole.held, whole.rows, whole.stopped, whole.rest) == (7, 21, "", ())
    anyway = remeasure(table, 7, backend=replay_backend(disturbed))
    assert (anyway.stopped, anyway.held, anyway.unclear) == ("", 2, 5)


@pytest.fixture
def built_while_busy(shapes_file, tmp_path, replay_backend, rows):
    """A table whose times are five times those of an idle machine, and marked as disturbed."""
    slow = [replace(timed(row, 5.0), detail=DISTURBED) if row.times else row for row in rows]
    out = tmp_path / "busy.db"
    build(BuildRequest(shapes=str(shapes_file), out=out), backend=replay_backend(slow))
    return out


@pytest.mark.parametrize("packed", [False, True])
def test_an_idle_machine_is_not_judged_by_times_of_a_busy_one(built_while_busy, replay_backend, rows, tmp_path, packed):
    """No time has changed, and no verdict has been lost: the recorded times were worth nothing."""
    table = built_while_busy
    if packed:
        table = tmp_path / "packed.db"
        pack(built_while_busy, table)
    result = remeasure(table, 100, backend=replay_backend(rows))
    assert (result.rows, result.moved, result.failed, result.held) == (0, (), 0, 0)
    assert (result.unclear, result.disturbed) == (7, 0)
    assert result.doubtful == result.timed > 7


def test_it_says_how_long_it_takes_with_its_candidates_and_beside_other_programs(table, replay_backend, rows):
    def expected_s(n: int, slower: float = 1.0, wait_s: float | None = None) -> float:
        backend, watcher = replay_backend(rows), Watcher()
        backend.slowdown = lambda: slower
        remeasure(table, n, backend=backend, seed=1, progress=watcher, wait_s=wait_s)
        assert watcher.states[-1].eta_s == 0.0
        return watcher.states[0].eta_s

    one, all_ = expected_s(1), expected_s(7)
    assert 10 < one < 30  # The start of the processes, and two kernels to compile, load and time.
    assert 3 * 5 < all_ - one < 6 * 10
    assert expected_s(7, slower=3.0) == pytest.approx(3 * all_ + estimate.PATIENCE_S)
    assert expected_s(7, slower=3.0, wait_s=1.0) == pytest.approx(all_)


def test_what_compiling_took_is_expected_of_the_timing(table, replay_backend, rows, monkeypatch):
    """Nobody could say before that other programs would start."""
    now, watcher = [time.monotonic()], Watcher()
    monkeypatch.setattr("gemmdb.generators.progress.monotonic", lambda: now[0])

    class Slowly(Replay):
        def prepare(self, jobs, ready=ignore):
            now[0] += 3 * start_s
            super().prepare(jobs, ready)

    expected = expected_of(sampled_of_all(table), replay_backend(rows), 1, 1.0)
    start_s = expected.start_s
    remeasure(table, 7, backend=replay_backend(rows, replay=Slowly), progress=watcher)
    first, *_ = [state.eta_s for state in watcher.states if state.phase == "timing"]
    assert watcher.states[0].eta_s == pytest.approx(start_s + expected.work_s, abs=5)
    assert 2 * expected.work_s < first < 3 * expected.work_s


def sampled_of_all(path):
    with Table.open(path) as table:
        return sample(table, DEVICE, TOOLCHAIN.klass, 7)


def test_what_ranges_are_compared_with_is_timed_again_and_no_rival(tmp_path):
    """A range needs its time under the new toolchain, too."""
    problem = Problem.gemm("mm", m=8, n=64, k=64, dtype="fp32", constant_weight=True)
    form = symbolic_form(problem)
    with Store.open(path := tmp_path / "t.db") as store:
        run = store.begin_run({})
        store.add(
            Measurement(problem, config, DEVICE, Protocol("host", "cold", 1, 30), TOOLCHAIN, run, Status.OK,
                        Times(us, us * 0.99, us * 1.01, 30, 100.0))
            for config, us in ((form, 30.0), (CPP, 50.0), (ATEN, 100.0))
        )  # fmt: skip
        store.refresh()
    with Table.open(path) as table:
        (verdict,), every = table.verdicts(problem, DEVICE), table.rows(problem, DEVICE)
        assert sampled_of(verdict, table, DEVICE).recorded == {ATEN: 100.0, form: 30.0, CPP: 50.0}
    assert verdict.pick == CPP
    assert holds(verdict, every)
