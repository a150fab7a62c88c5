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

    def wait(self, limit_s: float, threads: int | None, say: object) -> Load | None:
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


def test_on_a_quiet_machine_it_looks_once_and_measures_once(machine: Machine) -> None:
    machine.during, machine.waited = [QUIET, QUIET], [QUIET]
    watch = Watch(2)
    assert watch.timed(machine.measure) == (1, False)
    assert watch.timed(machine.measure) == (2, False)


def test_what_was_disturbed_is_measured_again_when_it_is_quiet(machine: Machine) -> None:
    machine.during, machine.waited = [BUSY, QUIET], [QUIET, QUIET]
    assert Watch(2).timed(machine.measure) == (2, False)


def test_what_is_disturbed_again_is_marked(machine: Machine) -> None:
    machine.during, machine.waited = [BUSY, BUSY], [BUSY, BUSY]
    assert Watch(2).timed(machine.measure) == (2, True)


def test_without_patience_it_neither_waits_nor_repeats(machine: Machine) -> None:
    machine.during, machine.waited, machine.takes_s = [BUSY, BUSY, QUIET], [BUSY], 30.0
    watch = Watch(2, patience_s=20.0)
    assert watch.timed(machine.measure) == (1, True)
    assert watch.timed(machine.measure) == (2, True)
    assert watch.timed(machine.measure) == (3, False)


def test_of_a_measurement_that_is_too_short_what_was_known_before_holds(machine: Machine) -> None:
    machine.during, machine.waited = [None, BUSY, None], [QUIET, BUSY]
    watch = Watch(2)
    assert watch.timed(machine.measure) == (1, False)
    watch.patience_s = 0.0
    assert watch.timed(machine.measure) == (2, True)
    assert watch.timed(machine.measure) == (3, True)


def outcome(config: Config, us: float, reach: float) -> Outcome:
    return Outcome(config, Status.OK, Times(us, us * (1 - reach), us * (1 + reach), 30, 100.0))


@pytest.mark.parametrize(("reach", "disturbed"), [(0.02, False), (0.4, True)])
def test_an_unsteady_reference_marks_all(reach: float, disturbed: bool) -> None:
    failed = Outcome(OTHER, Status.ERROR)
    found = judged([outcome(ATEN, 100.0, reach), outcome(OTHER, 50.0, 0.01), failed])
    assert [one.disturbed for one in found] == [disturbed, disturbed, False]
