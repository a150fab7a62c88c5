"""Requalifying a program's verdicts after an upgrade, over recorded outcomes and real tables."""

import signal
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from threading import Event

import pytest
from kit.replay import CPP, DEVICE, TOOLCHAIN, Replay

from gemmdb.errors import InputError
from gemmdb.generators.backend import ignore
from gemmdb.generators.build.build import BuildRequest, build
from gemmdb.generators.files.pack import pack
from gemmdb.generators.files.verify import verify
from gemmdb.generators.measure import quiet
from gemmdb.generators.measure.requalify import Limits, requalify
from gemmdb.key.problem import Query
from gemmdb.lookup import answer
from gemmdb.processes.pool import Stopped
from gemmdb.settings import Policy
from gemmdb.table.catalog import Catalog, Source
from gemmdb.table.measurement import DISTURBED, NOISY, Status, Times
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store
from gemmdb.workload.entries import Entry, Workload

SAME_CLASS, OTHER_CLASS = (replace(TOOLCHAIN, torch=version) for version in ("2.13.1", "2.14.0"))


@pytest.fixture(autouse=True)
def unsteady(unknown_load, monkeypatch):
    """References may be unsteady here."""
    monkeypatch.setattr(quiet, "NOISY", NOISY)


@pytest.fixture
def old(shapes_file, tmp_path, replay_backend, rows):
    """The table of the old toolchain, in which the template that is split over N takes 60% of ATen's time."""
    request = BuildRequest(shapes=str(shapes_file), out=tmp_path / "old.db")
    build(request, backend=replay_backend(rows))
    return request.out


@pytest.fixture
def run(old, tmp_path, replay_backend, rows, problems):
    """Requalify a workload of all problems, with what has become of the rows."""

    def ran(change=lambda row: row, entries=(), path=old, toolchain=OTHER_CLASS, replay=Replay, **limits):
        backend = replay_backend(list(map(change, rows)), toolchain=toolchain, replay=replay)
        workload = Workload(tuple(entries) or tuple(map(Entry, problems)), {})
        with Table.open(path) as table:
            return requalify(workload, [table], tmp_path / "new.db", Limits(**limits), backend)

    return ran


def is_pick(row):
    return row.config.values.get("threads_n") == 2


def slower(row):
    """The old pick now takes 30% more than ATen."""
    return replace(row, times=Times(130.0, 129.0, 131.0, 30, 100.0)) if is_pick(row) else row


def at(problem, change):
    return lambda row: change(row) if row.problem == problem else row


def served(problem, toolchain, *paths):
    """The config that a lookup under a toolchain serves from these tables."""
    with ExitStack() as stack:
        tables = [(Source(path, "explicit"), stack.enter_context(Table.open(path))) for path in paths]
        hit = answer(Query(problem, DEVICE), Catalog(tables), Policy(near=False), toolchain)
    return hit and hit.config


@pytest.mark.parametrize("toolchain", [SAME_CLASS, OTHER_CLASS])
@pytest.mark.parametrize("packed", [False, True])
def test_what_no_longer_holds_is_demoted_and_the_rest_is_kept(run, problems, old, tmp_path, toolchain, packed):
    path = old
    if packed:
        pack(old, path := tmp_path / "packed.db")
    pick = served(problems[2], TOOLCHAIN, path)
    found = run(at(problems[2], slower), path=path, toolchain=toolchain)
    assert (found.checked.problems, found.checked.held, found.checked.failed, found.unmeasured) == (7, 6, 1, 0)
    (changed,) = found.changed
    assert (changed.problem, changed.before, changed.now) == (problems[2], pick, CPP)
    assert (round(changed.recorded, 2), round(changed.found, 2)) == (1.67, 1.25)
    assert verify(found.table) == []
    assert served(problems[2], toolchain, found.table, path) == CPP
    assert served(problems[1], toolchain, found.table, path) == pick
    assert served(problems[2], toolchain, path) == pick, "until then the old table decides"


def test_a_pick_that_crashes_now_is_demoted(run, problems):
    found = run(at(problems[0], lambda row: replace(row, status=Status.CRASH, times=None) if is_pick(row) else row))
    assert [(one.problem, one.now) for one in found.changed] == [(problems[0], CPP)]
    with Table.open(found.table) as table:
        assert {row.toolchain.torch for row in table.measurements()} == {"2.14.0"}
        assert len(table.provenance()) == 1


def test_what_is_not_conclusive_is_left_to_the_old_table(run, problems):
    found = run(at(problems[3], lambda row: replace(row, detail=DISTURBED) if row.times else row))
    assert (found.checked.held, found.checked.unclear, found.changed) == (6, 1, ())
    assert served(problems[3], OTHER_CLASS, found.table) is None
    found.table.unlink()
    assert run(lambda row: replace(row, detail=DISTURBED) if row.times else row).table is None


def test_a_range_stands_for_its_measured_sizes(run, problems):
    entry = Entry(problems[3], ranges=(("m", 4, 32),))
    found = run(entries=[entry])
    assert sorted(one.sampled.verdict.problem.m for one in found.checked.done) == [4, 8, 16, 32]
    found.table.unlink()
    found = run(entries=[replace(entry, ranges=(("m", 16, None),))])
    assert sorted(one.sampled.verdict.problem.m for one in found.checked.done) == [16, 32, 64]


def test_the_budget_is_for_what_takes_the_most_time(run, problems):
    found = run(entries=[Entry(problem, calls=problem.m) for problem in problems], budget_s=5.0)  # To start takes 8 s.
    assert [one.verdict.problem.m for one in found.checked.rest] == [32, 16, 8, 4, 2, 1]


@pytest.mark.parametrize(("compile_s", "time_s", "budget_s"), [(20, 10, 100), (1, 29, 100), (29, 1, 60)])
def test_the_budget_is_exceeded_by_at_most_a_tenth(run, problems, monkeypatch, compile_s, time_s, budget_s):
    """Each verdict takes 30 s, several times as long as expected."""
    now = [0.0]
    monkeypatch.setattr("gemmdb.generators.measure.remeasure.monotonic", lambda: now[0])

    class Slowly(Replay):
        def prepare(self, jobs, ready=ignore):
            now[0] += compile_s * len(jobs)
            super().prepare(jobs, ready)

        def measure(self, *args):
            now[0] += time_s
            return super().measure(*args)

    found = run(replay=Slowly, budget_s=budget_s)
    assert (len(found.checked.done), now[0]) == (budget_s // 30, budget_s // 30 * 30)
    assert len(found.checked.done) + len(found.checked.rest) == len(problems)


def test_a_first_verdict_that_takes_longer_than_the_budget_is_ended_with_it(run, problems):
    class Endless(Replay):
        closed = Event()

        def measure(self, *_):
            assert self.closed.wait(30.0)
            raise Stopped("closed")

        def close(self):
            self.closed.set()

    begun = time.monotonic()
    found = run(replay=Endless, budget_s=1.0)
    assert (found.checked.done, len(found.checked.rest), found.table) == ((), len(problems), None)
    assert (found.checked.interrupted, found.checked.stopped) == (False, "")
    assert time.monotonic() - begun < 5.0


def test_what_no_table_has_is_counted_and_other_devices_are_left_out(run, problems):
    unknown = replace(problems[0], k=999)
    entries = [Entry(problems[0]), Entry(unknown), Entry(problems[1], device=replace(DEVICE, units=64).text)]
    found = run(entries=entries)
    assert (found.checked.problems, found.unmeasured) == (1, 1)
    found.table.unlink()
    with pytest.raises(InputError, match="no table has verdicts for the workload on Test CPU"):
        run(entries=[Entry(unknown)])


def test_an_existing_file_is_not_mixed_with_new_rows(run, tmp_path):
    (tmp_path / "new.db").touch()
    with pytest.raises(InputError, match=r"new\.db exists: name a new file"):
        run()


class Interrupted(Replay):
    """At its third problem Ctrl-C is pressed, and its process is ended in the middle of it."""

    closed = False

    def measure(self, *args):
        if len(self.calls) == 2:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            while not self.closed:
                time.sleep(0.01)
            return [replace(one, status=Status.CRASH, times=None) for one in super().measure(*args)]
        return super().measure(*args)

    def close(self):
        self.closed = True


@pytest.fixture
def with_ctrl_c():
    """Where tests run in the background of a shell, SIGINT is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("with_ctrl_c")
def test_what_was_measured_until_ctrl_c_is_kept(run, problems, tmp_path):
    found = run(replay=Interrupted)
    assert (found.checked.interrupted, found.checked.problems, found.checked.held) == (True, 2, 2)
    assert (len(found.checked.rest), found.changed) == (5, ())
    assert verify(found.table) == []
    with Table.open(found.table) as table:
        assert [problem for problem, _ in table.decided()] == [
            one.sampled.verdict.problem for one in found.checked.done
        ]


def test_each_verdict_is_stored_at_once_and_no_other_process_gets_the_name(run, tmp_path):
    """So that a kill loses only the one that is being measured."""
    seen = []

    class Looking(Replay):
        def measure(self, *args):
            with Table.open(tmp_path / "new.db") as table:
                seen.append(len(list(table.decided())))
            if not self.calls:
                with pytest.raises(InputError, match=r"new\.db exists: name a new file"):
                    run()
            return super().measure(*args)

    found = run(replay=Looking)
    assert seen == [0, 1, 2, 3, 4, 5, 6]
    assert found.checked.problems == 7


def test_no_file_is_left_where_nothing_could_be_kept(run, problems, tmp_path):
    with pytest.raises(InputError, match="no table has verdicts"):
        run(entries=[Entry(replace(problems[0], k=999))])
    assert not (tmp_path / "new.db").exists()


def test_a_table_that_cannot_be_opened_leaves_no_file_and_a_failure_closes_the_backend(
    run, replay_backend, tmp_path, monkeypatch
):
    closed = []
    monkeypatch.setattr("kit.replay.ReplayBackend.close", lambda self: closed.append(self))
    monkeypatch.setattr("kit.replay.ReplayBackend.slowdown", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run()
    assert len(closed) == 1
    monkeypatch.setattr(Store, "open", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run()
    assert not (tmp_path / "new.db").exists()


def test_beside_other_programs_the_budget_is_for_fewer(run, problems, replay_backend, monkeypatch):
    entries = [Entry(problem, calls=problem.m) for problem in problems]
    idle = run(entries=entries, budget_s=60.0)
    idle.table.unlink()
    monkeypatch.setattr("kit.replay.ReplayBackend.slowdown", lambda _: 3.0)
    busy = run(entries=entries, budget_s=60.0)
    assert 0 < busy.checked.problems < idle.checked.problems
