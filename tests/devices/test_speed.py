"""How fast this machine compiles, with compilers that are scripts."""

import sys
import time

import pytest

from gemmdb.devices import speed
from gemmdb.devices.speed import slowness  # Before `unknown_load` replaces it.
from gemmdb.generators import effort, estimate
from gemmdb.generators.measure.cpu.measurer import CpuBackend


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Make the C++ compiler a script in Python."""

    def make(source: str) -> None:
        path = tmp_path / "compiler"
        path.write_text(f"#!{sys.executable} -S\nimport os, sys, time\n{source}\n")
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))

    return make


BUSY = "until = time.process_time() + {}\nwhile time.process_time() < until: pass"


def test_the_processor_time_of_a_compiler_tells_and_not_how_long_one_waits_for_it(compiler, monkeypatch):
    monkeypatch.setattr(speed, "LIMIT_S", 60.0)
    compiler(f"assert b'include' in sys.stdin.buffer.read()\n{BUSY.format(speed.USUAL_S)}\ntime.sleep(0.3)")
    assert 1.0 <= slowness.__wrapped__() < 1.0 + 0.2 / speed.USUAL_S  # The interpreter starts, too.
    compiler(BUSY.format(4 * speed.USUAL_S))
    of_a_build = speed.STEADY + (1 - speed.STEADY) * 4.0
    assert of_a_build <= slowness.__wrapped__() < of_a_build + 0.2 / speed.USUAL_S


@pytest.mark.parametrize("source", ["sys.exit(1)", "os.close(0)\nsys.exit(1)", "os.kill(os.getpid(), 9)"])
def test_a_compiler_that_fails_tells_nothing(compiler, source):
    compiler(source)
    assert slowness.__wrapped__() == 1.0


def test_a_compiler_that_is_missing_or_hangs_tells_nothing(compiler, monkeypatch):
    monkeypatch.setattr(speed, "LIMIT_S", 0.5)
    compiler("time.sleep(60)")
    begun = time.monotonic()
    assert slowness.__wrapped__() == 1.0
    assert time.monotonic() - begun < 20
    monkeypatch.setenv("CXX", "/no/such/compiler")
    assert slowness.__wrapped__() == 1.0


def test_a_compiler_that_does_nothing_is_no_machine_without_limits(compiler):
    compiler("")
    assert speed.LEAST <= slowness.__wrapped__() < 1.0


def test_estimates_of_a_cpu_are_for_this_machine(monkeypatch):
    backend, quick = CpuBackend(), effort.named("quick", "cpu")
    usual_s = estimate.start_s(backend, quick)
    monkeypatch.setattr(speed, "slowness", lambda: 0.6)
    assert estimate.start_s(backend, quick) == pytest.approx(0.6 * usual_s)
    assert estimate.start_s(backend, quick, 2.0) == pytest.approx(1.2 * usual_s + estimate.PATIENCE_S)
