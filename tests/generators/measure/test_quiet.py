"""Measuring while other programs keep the machine busy."""

from __future__ import annotations

import pytest

from gemmdb.devices import load
from gemmdb.devices.load import Load
from gemmdb.generators.backend import Outcome
from gemmdb.generators.measure import quiet
from gemmdb.generators.measure.quiet import Watch, judged
from gemmdb.kernels.config import ATEN, Config
from gemmdb.table.measurement import NOISY, Status, Times

BUSY, QUIET = Load(2.0), Load(0.0)
OTHER = Config.of("aten", "int8pack_mm")


@pytest.fixture(autouse=True)
def unsteady(unknown_load: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """References may be unsteady here."""
    monkeypatch.setattr(quiet, "NOISY", NOISY)


class Machine:
    """Its loads while something is measured, and those that waiting ends with. Waiting takes `takes_s` seconds."""

    def __init__(self, during: list[Load | None], waited: list[Load | None], takes_s: float = 0.0) -> None:
        self.during, self.waited, self.takes_s, self.clock = during, waited, takes_s, 0.0
        self.measured = 0

    def wait(self, limit_s: float, threads: int | None, say: object, given_up: object) -> Load | None:
        self.clock += self.takes_s
        return self.waited.pop(0)

    def between(self, before: object, after: object, threads: int | None) -> Load | None:
        return self.during.pop(0)

    def measure(self) -> int:
        self.measured += 1
        return self.measured


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine([], [])
    monkeypatch.setattr(load, "wait", made.wait)
    monkeypatch.setattr(load, "between", made.between)
    monkeypatch.setattr("gemmdb.generators.measure.quiet.monotonic", lambda: made.clock)
    return made


CASES = {
    "a quiet machine is looked at once and measured on once": ([QUIET, QUIET], [QUIET], 0.0, [(1, False), (2, False)]),
    "what was disturbed is measured again when it is quiet": ([BUSY, QUIET], [QUIET, QUIET], 0.0, [(2, False)]),
    "what is disturbed again is marked": ([BUSY, BUSY], [BUSY, BUSY], 0.0, [(2, True)]),
    "without patience it neither waits nor repeats":
        ([BUSY, BUSY, QUIET], [BUSY], 30.0, [(1, True), (2, True), (3, False)]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_measured_beside_other_programs(machine: Machine, case: str) -> None:
    machine.during, machine.waited, machine.takes_s, wanted = CASES[case]
    machine.during, machine.waited = list(machine.during), list(machine.waited)
    watch = Watch(2, patience_s=20.0)
    assert [watch.timed(machine.measure) for _ in wanted] == wanted


def test_it_says_when_waiting_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = [BUSY, QUIET]
    monkeypatch.setattr(load, "now", lambda threads=None: loads.pop(0))
    monkeypatch.setattr(load, "between", lambda *readings: QUIET)
    said: list[str] = []
    assert Watch(2, say=said.append).timed(lambda: 1) == (1, False)
    assert said == [f"{quiet.WAITING_TEXT}: {BUSY.text}", quiet.TIMING_TEXT]


def test_of_a_measurement_that_is_too_short_what_was_known_before_holds(machine: Machine) -> None:
    machine.during, machine.waited = [None, BUSY, None], [QUIET, BUSY]
    watch = Watch(2)
    assert watch.timed(machine.measure) == (1, False)
    watch.patience_s = 0.0
    assert [watch.timed(machine.measure) for _ in range(2)] == [(2, True), (3, True)]


def outcome(config: Config, us: float, reach: float) -> Outcome:
    return Outcome(config, Status.OK, Times(us, us * (1 - reach), us * (1 + reach), 30, 100.0))


@pytest.mark.parametrize(("reach", "disturbed"), [(0.02, False), (0.4, True)])
def test_an_unsteady_reference_marks_all(reach: float, disturbed: bool) -> None:
    failed = Outcome(OTHER, Status.ERROR)
    found = judged([outcome(ATEN, 100.0, reach), outcome(OTHER, 50.0, 0.01), failed])
    assert [one.disturbed for one in found] == [disturbed, disturbed, False]
