"""What is built first, and what fits into a budget."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.replay import CPP

from gemmdb.cli.tuned import expected
from gemmdb.devices import detect, load, registry
from gemmdb.errors import InputError
from gemmdb.generators import effort, estimate
from gemmdb.generators.measure import backends
from gemmdb.generators.measure.candidates import ONLY_ATEN
from gemmdb.kernels.config import ATEN
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.key.toolchain import installed
from gemmdb.lookup import answer
from gemmdb.lookup.saving import Saving
from gemmdb.report.workload import of_workload
from gemmdb.settings import Policy, shipped_tables
from gemmdb.table.catalog import Catalog, Source
from gemmdb.table.measurement import Measurement, Protocol, Status, Times, marks
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store
from gemmdb.tune import plan as plans
from gemmdb.tune.plan import Plan, Wanted, by_worth, plan, seconds
from gemmdb.workload.entries import Entry, Workload

CPU = Device("cpu", "cpu", "Example CPU", 2, isa="avx2")


def wanted(n: int, calls: int, us: float, saves: float | None = None, takes: float = 10.0) -> Wanted:
    saving = None if saves is None else Saving(us, us - saves)
    return Wanted(Problem.gemm("mm", m=16, n=n, k=64), CPU, calls, us, saving, takes)


def test_first_is_what_saves_most_over_all_calls():
    slow_but_rare, often, hopeless = wanted(64, 1, 1000, 500), wanted(128, 1000, 20, 5), wanted(256, 9999, 50, 0.01)
    assert by_worth([slow_but_rare, hopeless, often]) == [often, slow_but_rare, hopeless]


def test_without_an_expected_saving_time_is_the_worth():
    assert [one.problem.n for one in by_worth([wanted(64, 10, 5), wanted(128, 2, 100)])] == [128, 64]


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 9), st.floats(0, 9)), max_size=8))
def test_the_order_does_not_depend_on_that_of_the_file(rows):
    some = [wanted(n, calls, 10, saves) for n, calls, saves in {row[0]: row for row in rows}.values()]
    assert by_worth(some) == by_worth(some[::-1])


@pytest.mark.parametrize(
    ("budget_s", "fitting", "seconds"), [(5, 0, 5), (12, 1, 12), (21, 2, 21), (28, 2, 22), (30, 3, 30), (1000, 3, 32)]
)
def test_a_plan_keeps_to_the_budget_but_for_a_tenth(budget_s, fitting, seconds):
    some = Plan((wanted(64, 1, 9, 3), wanted(128, 1, 9, 2), wanted(256, 1, 9, 1)), {}, budget_s, start_s=2)
    assert some.fitting == fitting
    assert some.seconds == seconds
    assert some.saving_us == (sum([3, 2, 1][:fitting]) if fitting else None)
    assert some.first_s == 12


def test_an_unknown_saving_is_said_to_be_unknown():
    assert Plan((wanted(64, 1, 9),), {}, 60).saving_us is None


def test_budgets():
    assert [seconds(text) for text in ("90s", "10m", "1h30m", "0.5m")] == [90, 600, 5400, 30]
    for text in ("", "10", "ten", "0s", "-5m", "5 m 3", "99999h", "10m10m"):
        with pytest.raises(InputError, match="90s, 10m or 1h30m"):
            seconds(text)


def product(n: int, **more) -> Problem:
    return Problem.gemm("mm", m=16, n=n, k=256, dtype="fp32", **more)


def test_a_plan_names_what_it_leaves_out_with_reasons(tmp_path: Path):
    packed, small = product(512, constant_weight=True), product(128, constant_weight=True)
    plain = product(512)
    elsewhere = Device("cpu", "cpu", "Another CPU", 2, isa="avx2")
    entries = (
        Entry(small, 1, 10, CPU.text),
        Entry(packed, 1, 10, CPU.text),
        Entry(packed, 1, 5, CPU.text, (("m", 1, 64),)),
        Entry(plain, 1, 10, CPU.text),
        Entry(product(64), 1, 1, elsewhere.text),
    )
    found = plan(Workload(entries, {}), Catalog(()), tmp_path / "none.db", 60.0, None)
    assert [(one.problem, one.calls, one.ranges) for one in found.wanted] == [
        (packed, 10, ()), (packed, 5, (("m", 1, 64),)), (small, 10, ()),
    ]  # fmt: skip
    (only_aten,) = (reason for reason in found.left_out if reason.startswith(ONLY_ATEN))
    assert found.left_out == {only_aten: 1, plans.OTHER_DEVICE.reason: 1}
    fixed, ranged, _ = found.wanted
    one = fixed.seconds
    assert one == fixed.least_s > 0
    sizes = len(set(ranged.missing) - {ranged.problem})
    assert sizes > 5
    # The recorded size is measured for the fixed one already.
    assert 0.7 * one * sizes <= ranged.seconds < 1.3 * one * sizes
    assert 1.8 * one <= ranged.least_s < ranged.seconds / 2  # ATen has one form at m=1.


def test_a_size_that_two_gemms_need_takes_its_time_once(tmp_path: Path):
    packed = product(512, constant_weight=True)
    fixed = Entry(packed, 1, 10, CPU.text)
    ranged = Entry(packed, 1, 10, CPU.text, (("m", 1, 64),))
    alone = plan(Workload((ranged,), {}), Catalog(()), tmp_path / "none.db", 6000.0, None)
    both = plan(Workload((fixed, ranged), {}), Catalog(()), tmp_path / "none.db", 6000.0, None)
    assert both.seconds == pytest.approx(alone.seconds)


def test_the_pace_of_the_last_build_corrects_the_next_estimate(tmp_path: Path):
    workload = Workload((Entry(product(512, constant_weight=True), 1, 10, CPU.text),), {})
    first, next_ = (plan(workload, Catalog(()), tmp_path / "none.db", 600.0, None, pace) for pace in (1.0, 3.5))
    assert next_.seconds == pytest.approx(3.5 * first.seconds)


def test_on_a_busy_machine_that_nobody_waits_for_it_takes_longer(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(load, "now", lambda seconds=0.5, threads=None: load.Load(float(detect.cores())))
    monkeypatch.setattr(load, "queued", lambda: 1.0)
    workload = Workload((Entry(product(512, constant_weight=True), 1, 10, CPU.text),), {})
    idle, beside = (plan(workload, Catalog(()), tmp_path / "none.db", 600.0, None, busy=busy) for busy in (False, True))
    assert beside.seconds == pytest.approx(2 * idle.seconds + estimate.PATIENCE_S)
    monkeypatch.setattr(load, "queued", lambda: 6.0)
    crowded = plan(workload, Catalog(()), tmp_path / "none.db", 600.0, None, busy=True)
    assert crowded.seconds == pytest.approx(7 * idle.seconds + estimate.PATIENCE_S)


def test_what_only_another_gpu_measured_is_built():
    h100 = registry.find("NVIDIA H100 80GB HBM3")
    decode = Problem.gemm("grouped_mm", m=64, n=6144, k=2048, groups=8)
    with Table.open(shipped_tables() / "sm90-nvidia-h200.db", immutable=True) as table:
        catalog = Catalog([(Source(table.path, "explicit"), table)])
        assert answer(Query(decode, h100), catalog, Policy(), None).rung == "sku"
        (missed,) = plans._missed([Entry(decode, 1, 10, h100.text)], catalog)
        report = of_workload(Workload((Entry(decode, 1, 10, h100.text),), {}), "w", catalog, plans.LOOKUP)
    assert missed.problem == decode
    assert [one.rung for one in report.products] == ["miss"]


@pytest.mark.parametrize("disturbed", [False, True])
def test_what_was_disturbed_is_built_again(tmp_path: Path, disturbed: bool):
    """`run again when the machine is idle` names the same command."""
    device, problem, path = detect.cpu(), product(512, constant_weight=True), tmp_path / "mine.db"
    toolchain = installed("cpu")
    assert toolchain is not None
    with Store.open(path) as store:
        run_id = store.begin_run({"command": "tests"})
        store.add(
            Measurement(problem, config, device, Protocol("host", "cold", 1, 30), toolchain, run_id, Status.OK,
                        Times(us, us * 0.99, us * 1.01, 30, 100.0), detail=marks(False, disturbed))
            for config, us in ((ATEN, 100.0), (CPP, 100.0))
        )  # fmt: skip
        store.refresh()
    workload = Workload((Entry(problem, 1, 9, device.text),), {})
    found = plan(workload, Catalog.load(tables=[path]), path, 600.0, None)
    assert [one.problem for one in found.wanted] == [problem] * disturbed


@pytest.mark.parametrize("others", [0.0, 2.0])
def test_what_two_builds_disturbed_is_built_again_on_an_idle_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: float
):
    monkeypatch.setattr(load, "now", lambda *_, threads=None: load.Load(others))
    device, problem, path = detect.cpu(), product(512, constant_weight=True), tmp_path / "mine.db"
    backend = backends.backend_for(device)
    configs = [one.config for one in backend.space.candidates(problem, device, effort.named("quick"))]
    with Store.open(path) as store:
        for run in [store.begin_run({"number": number}) for number in range(2)]:
            store.add(
                Measurement(problem, config, device, Protocol("host", "cold", 1, 30, version=3), installed("cpu"), run,
                            Status.OK, Times(100.0, 99.0, 101.0, 30, 100.0), detail=marks(True, True))
                for config in configs
            )  # fmt: skip
        store.refresh()
    workload = Workload((Entry(problem, 1, 9, device.text),), {})
    found = plan(workload, Catalog.load(tables=[path]), path, 600.0, None)
    assert [one.problem for one in found.wanted] == [problem]  # The build waits for an idle machine.
    found = plan(workload, Catalog.load(tables=[path]), path, 600.0, None, busy=True)
    assert [one.problem for one in found.wanted] == [problem] * (not others)
    assert found.left_out == ({plans.STILL_BUSY.reason: 1} if others else {})


@pytest.mark.parametrize("disturbed", [False, True])
def test_disturbed_sizes_of_a_range_are_built_again(tmp_path: Path, disturbed: bool):
    """They decide nothing against ATen, and `explain` said that no kernel is faster, of one that is 2x ATen at the
    recorded size."""
    problem, cpu = Problem.gemm("mm", m=8, n=512, k=512, constant_weight=True), detect.cpu()
    with Store.open(path := tmp_path / "t.db") as store:
        run = store.begin_run({})
        store.add(
            Measurement(problem.resized(m, 512, 512), config, cpu, Protocol("host", "cold", 1, 30), installed("cpu"),
                        run, Status.OK, Times(us, us * 0.99, us * 1.01, 30, 100.0),
                        detail=marks(False, disturbed and m != 8))
            for m in (2, 4, 8, 16) for config, us in ((ATEN, 100.0), (CPP, 50.0))
        )  # fmt: skip
        store.refresh()
    catalog = Catalog.load(tables=[path])
    workload = Workload((Entry(problem, 1, 10, cpu.text, (("m", 2, 16),)),), {})
    (product,) = of_workload(workload, "w", catalog).products
    assert str(product.outcome) == ("ATen (nothing known)" if disturbed else "table")
    assert product.outcome.disturbed == disturbed
    found = plan(workload, catalog, path, 600, None)
    assert [[one.m for one in wanted.missing] for wanted in found.wanted] == [[2, 4, 16]] * disturbed


def test_nothing_misses():
    assert plan(Workload((), {}), Catalog(()), None, 60.0, None) == Plan((), {}, 60.0)


def test_an_estimate_counts_all_sizes_of_a_range_as_a_span():
    one = replace(wanted(64, 1, 9, takes=240.0), least_s=60.0)
    assert expected(Plan((one,), {}, 600.0)) == "1 of 1 GEMM should fit into the budget, takes about 60 s to 4 min"


def test_a_table_that_cannot_be_written_is_refused_before_the_program_runs(tmp_path, monkeypatch):
    there, link, empty = tmp_path / "there", tmp_path / "link.db", tmp_path / "there" / "empty.db"
    there.mkdir()
    empty.touch()
    link.symlink_to(there / "new.db")
    for one in (link, empty):
        plans.check_table(one)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != there)  # Modes do not stop root.
    for one in (link, empty, there / "folder" / "new.db"):
        with pytest.raises(InputError, match="name another --table"):
            plans.check_table(one)


def test_the_sizes_of_the_calls_decide_what_is_worth_most(tmp_path: Path):
    """The rows of the first call did, though later calls have a hundred times as many."""
    ranges = (("m", 1, 4096),)
    small = Entry(product(512, constant_weight=True), 1, 10, CPU.text, ranges, seen=(((("m", 16),), 10),))
    large = Entry(product(256, constant_weight=True), 1, 10, CPU.text, ranges, seen=(((("m", 4096),), 10),))
    found = plan(Workload((small, large), {}), Catalog(()), tmp_path / "none.db", 6000.0, None)
    assert [one.problem.n for one in found.wanted] == [256, 512]
    assert [one.entry for one in found.wanted] == [large, small]
    blind = [replace(one, seen=()) for one in (small, large)]
    found = plan(Workload(tuple(blind), {}), Catalog(()), tmp_path / "none.db", 6000.0, None)
    assert [one.problem.n for one in found.wanted] == [512, 256]


def test_a_product_of_two_activations_is_left_out_with_its_own_reason(tmp_path: Path):
    entries = (Entry(product(512), 1, 1, CPU.text, computed=True), Entry(product(256), 1, 1, CPU.text))
    found = plan(Workload(entries, {}), Catalog(()), tmp_path / "none.db", 600.0, None)
    assert sorted("freezing" in reason for reason in found.left_out) == [False, True]
