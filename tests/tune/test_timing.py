"""The last step of a `gemmdb tune`: when the program is timed, how long that takes, and what disturbed times are
worth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gemmdb.devices import detect, load
from gemmdb.devices.load import Load, Reading
from gemmdb.hit import Hit
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.report.workload import Product, WorkloadReport
from gemmdb.tune import timing
from gemmdb.tune.gained import Timed
from gemmdb.tune.running import Recorded
from gemmdb.tune.state import open_folder
from gemmdb.workload.entries import Entry

CPU = Device("cpu", "cpu", "Example CPU", 2, isa="avx2")
GPU = Device("cuda", "sm90", "Example GPU", 132)
FAST = Config.of("aten", "int8pack_mm")
BUSY = Load(2.0, programs=(("cc1plus", 2.0),))


def report(config: Config | None, disturbed: bool = False, device: Device = CPU) -> WorkloadReport:
    hit = None if config is None else Hit("exact", config, 10.0, 1.0 if config == ATEN else 2.0, "t.db")
    entry = Entry(Problem.gemm("mm", m=8, n=64, k=64), 1, 10, device.text)
    return WorkloadReport("w", (Product(entry, device, hit, disturbed),))


@pytest.mark.parametrize(("found", "said"), [
    (report(None), "no table answers, so ATen runs all GEMMs with and without gemmdb"),
    (report(ATEN), "ATen runs all GEMMs with and without gemmdb"),
    (report(ATEN, disturbed=True), "ATen runs all GEMMs with and without gemmdb: for 1 of 1, other programs disturbed"
                                   " all timings"),
    (report(FAST), ""),
    (report(ATEN, device=GPU), ""),  # A compile may confirm another kernel.
])  # fmt: skip
def test_a_program_is_timed_only_if_another_kernel_than_aten_may_run(found: WorkloadReport, said: str) -> None:
    assert timing.pointless(found) == said


def nobody_asked(busy: Load) -> bool:
    raise AssertionError(busy)


@pytest.mark.parametrize(("found", "wait_s", "measures", "why"), [
    (report(FAST), 0.0, lambda busy: False, BUSY.text),
    (report(FAST), 0.0, lambda busy: True, ""),
    (report(FAST), None, nobody_asked, ""),
    (report(FAST, device=GPU), 0.0, nobody_asked, ""),
])  # fmt: skip
def test_a_program_on_a_busy_cpu_is_timed_only_if_the_user_wants_it(
    monkeypatch: pytest.MonkeyPatch, found: WorkloadReport, wait_s: float | None, measures: Callable[[Load], bool],
    why: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(load, "now", lambda *_, threads=None: BUSY)
    assert timing.occupied(found, wait_s, measures, lambda text: None) == why


class Machine:
    """A clock that the runs of a program move, and what other programs use in each of them. The first run on each side
    compiles."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, others: list[float]) -> None:
        self.now_s, self.busy_s, self.others, self.seen = 0.0, 0.0, others, set[str]()
        monkeypatch.setattr(timing, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(timing, "run", self.run)
        self.us: list[float] = []
        monkeypatch.setattr(timing.gains, "read", lambda folder: self.times())
        monkeypatch.setattr(load, "now", lambda *_, threads=None: Load(others[0]))
        monkeypatch.setattr(load, "reading", lambda: Reading(self.now_s, self.busy_s, 0.0))

    def times(self) -> dict[tuple[str, ...], Timed]:
        return {("mm",): Timed(1, 9, (self.us.pop(0) if self.us else 5.0,) * 9)}

    def run(self, command: object, folder: Path, what: str, *_: object) -> Recorded:
        took_s = 6.0 if what in self.seen else 10.0
        self.seen.add(what)
        self.now_s += took_s
        self.busy_s += took_s * (self.others.pop(0) if len(self.others) > 1 else self.others[0])
        return Recorded(0, 1, 1, ())


def timed(
    machine: Machine, folder: Path, run_s: float, repeats: int | None = 2
) -> tuple[timing.Timing, list[str]]:  # fmt: skip
    said: list[str] = []
    state = open_folder(folder, ("python", "serve.py"), False)
    state.run_s = run_s
    return timing.Timing(state, repeats, None, None, said.append), said


def test_what_is_left_is_learned_from_the_runs_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recording compiled everything with empty caches and took 20 s."""
    one, said = timed(Machine(monkeypatch, [0.0]), tmp_path, 20.0)
    assert one.gained(report(FAST)).verdict == "no difference"
    assert said == [
        "4/4 timing: the program runs 4 more times, at most about 80 s",
        "4/4 timing, run 1 of 4: the program runs without gemmdb",
        "4/4 timing, run 2 of 4: the program runs with gemmdb, about 30 s left",
        "4/4 timing, run 3 of 4: the program runs with gemmdb, about 20 s left",
        "4/4 timing, run 4 of 4: the program runs without gemmdb, about 10 s left",
    ]


def test_it_is_timed_until_the_gain_is_certain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended after 4 runs with "between 0.995x and 1.874x: no difference"."""
    machine = Machine(monkeypatch, [0.0])
    machine.us = [5.2, 4.0, 3.6, 5.0, 5.1, 3.8, 3.7, 5.0, 1.0]
    one, said = timed(machine, tmp_path, 10.0, None)
    found = one.gained(report(FAST))
    assert (found.verdict, found.runs) == ("faster", 3)
    assert said[:2] == [
        "4/4 timing: the program runs 4 to 16 more times, at most about 120 s",
        "4/4 timing, run 1 of at most 16: the program runs without gemmdb",
    ]
    assert said[-1] == ("4/4 timing, run 6 of at most 16: the program runs with gemmdb, at most about 66 s left")


def test_it_stops_within_the_time_that_it_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, [0.0])
    machine.us = [9.0, 3.0, 9.0, 3.0] * 8
    one, said = timed(machine, tmp_path, 18.0, None)
    assert one.gained(report(FAST)).verdict == "no difference"
    assert said[0].endswith("at most about 120 s")
    assert machine.now_s <= 120
    assert len(said) > 9  # It used the time.
    machine = Machine(monkeypatch, [0.0])
    machine.us = [9.0, 3.0, 9.0, 3.0] * 8
    one, said = timed(machine, tmp_path, 300.0, None)
    one.gained(report(FAST))
    assert said[0] == "4/4 timing: the program runs 4 to 16 more times, at most about 1200 s"


def test_a_program_that_a_user_ends_is_timed_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, [0.0])
    machine.us = [9.0, 3.0, 9.0, 3.0] * 8
    one, said = timed(machine, tmp_path, 18.0, None)
    one.state.stopped = True
    assert one.gained(report(FAST)).runs == 2
    assert said[-1] == "4/4 timing, run 4 of 4: the program runs without gemmdb"


def test_a_busy_machine_takes_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "cores", lambda: 2)
    one, said = timed(Machine(monkeypatch, [2.0]), tmp_path, 20.0)
    one.gained(report(FAST))
    assert said[0].endswith("at most about 160 s")


def test_times_of_a_run_that_others_disturbed_are_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "cores", lambda: 2)
    one, _ = timed(Machine(monkeypatch, [0.0, 0.0, 1.5, 0.0]), tmp_path, 20.0)
    found = one.gained(report(FAST))
    assert (found.verdict, found.load) == ("cannot tell", 1.5)
    assert found.disturbed == "other programs keep 1.5 cores busy"
    one, _ = timed(Machine(monkeypatch, [0.0, 0.0, 1.5, 0.0]), tmp_path, 20.0)
    assert one.gained(report(FAST, device=GPU)).verdict == "no difference"
