"""What other processes take of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gemmdb.devices import load
from gemmdb.devices.load import Load, Reading, between

WORK = "while True: pass"
AWAY = f"import os, sys\npid = os.fork()\nif pid: print(pid); sys.exit()\nos.close(1); os.close(2)\n{WORK}"


@pytest.fixture(autouse=True)
def proc(unknown_load: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "PROC", Path("/proc"))
    if load.reading() is None:
        pytest.skip("this system has no /proc of Linux")


@pytest.fixture
def other() -> Iterator[None]:
    """A process that works, and that this process did not start, as far as the system knows."""
    started = subprocess.run([sys.executable, "-c", AWAY], capture_output=True, text=True, check=True, timeout=60)
    try:
        yield
    finally:
        os.kill(int(started.stdout), signal.SIGKILL)


def over(seconds: float) -> tuple[float, float]:
    """(cores that others kept busy, cores that this process and its children kept busy)."""
    before = load.reading()
    time.sleep(seconds)
    after = load.reading()
    assert before is not None
    assert after is not None
    found = between(before, after)
    assert found is not None
    return found.others, (after.own_s - before.own_s) / (after.at - before.at)


def test_another_process_that_works_is_load(other: None) -> None:
    others, own = over(0.6)
    assert others > 0.1  # On a busy machine it gets a share of a core.
    assert own < 0.1


def test_what_this_process_started_is_its_own_work() -> None:
    # A busy machine starts it late.
    with subprocess.Popen([sys.executable, "-c", f"print(flush=True)\n{WORK}"], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            assert over(0.6)[1] > 0.1
        finally:
            child.kill()


def test_the_work_of_a_child_that_ended_stays_its_own() -> None:
    before = load.reading()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    after = load.reading()
    assert before is not None
    assert after is not None
    assert after.own_s - before.own_s > 0.25


@pytest.mark.parametrize(
    ("others", "spare", "threads", "disturbs"),
    [(0.0, 0, 2, False), (0.2, 0, 2, False), (0.3, 0, 2, True), (1.0, 0, 32, False), (2.0, 0, 32, True),
     (3.0, 4, 4, False), (5.0, 4, 4, True)],
)  # fmt: skip
def test_a_load_disturbs_beyond_what_an_idle_machine_has(
    others: float, spare: int, threads: int, disturbs: bool
) -> None:
    assert Load(others, spare, threads).disturbs is disturbs


def test_between_two_readings() -> None:
    found = between(Reading(10.0, 100.0, 50.0), Reading(12.0, 103.0, 51.0), 2)
    assert found is not None
    assert found.others == 1.0
    assert between(Reading(10.0, 100.0, 50.0), Reading(12.0, 100.9, 51.0), 2) == Load(0.0, found.spare, 2)
    assert between(Reading(10.0, 1.0, 1.0), Reading(10.01, 1.0, 1.0)) is None
    assert between(None, Reading(10.01, 1.0, 1.0)) is None


def test_waiting_ends_when_the_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, said = [Load(2.0), Load(1.0), Load(0.0), Load(5.0)], []
    monkeypatch.setattr(load, "now", lambda threads=None: seen.pop(0))
    assert load.wait(60.0, say=said.append) == Load(0.0)
    assert said == [Load(2.0)]
    assert len(seen) == 1


def test_waiting_ends_when_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "now", lambda threads=None: Load(2.0))
    start = time.monotonic()
    assert load.wait(0.05) == Load(2.0)
    assert time.monotonic() - start < 30


def test_elsewhere_the_load_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "PROC", tmp_path)
    assert load.reading() is None
    assert load.now(0.0) is None
    assert load.wait(0.0) is None


def test_the_programs_that_work_are_named(other: None) -> None:
    before = load.reading()
    time.sleep(0.6)
    found = between(before, load.reading())
    assert found is not None
    assert any(name.startswith("python") for name, _ in found.programs)
    assert "(" in found.text


def test_a_program_whose_child_ends_is_not_named_for_all_that_the_child_did(tmp_path, monkeypatch) -> None:
    """Linux adds the time of a child to its parent's at once, when it ends: `python 39.7` on two cores."""
    monkeypatch.setattr(load, "PROC", tmp_path)
    (tmp_path / "7").mkdir()

    def counters(own: int, children: int) -> Reading | None:
        (tmp_path / "stat").write_text(f"cpu0 {own} 0 0 0 0 0 0 0\n")
        (tmp_path / "7" / "stat").write_text(f"7 (python) S 0 {'0 ' * 9}{own} 0 {children} 0 0\n")
        return load.reading(root=1)

    before, after = counters(100, 0), counters(150, 4000)
    assert before is not None
    assert after is not None
    found = between(replace(before, at=0.0), replace(after, at=1.0))
    assert found is not None
    assert found.programs == (("python", 0.5),)


def test_waiting_is_given_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "now", lambda threads=None: Load(2.0))
    start = time.monotonic()
    assert load.wait(60.0, given_up=lambda: True) == Load(2.0)
    assert time.monotonic() - start < 30


def test_programs_that_have_just_started_count_before_the_last_minute_shows_them(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(load, "PROC", tmp_path)
    monkeypatch.setattr(os, "getloadavg", lambda: (1.0, 1.0, 1.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert load.queued() == 0.5, "here nothing says what runs now"
    (tmp_path / "stat").write_text("cpu 1 2 3\nprocs_running 8\nprocs_blocked 0\n")
    assert load.queued() == (7 + 1) / 2 / 2
