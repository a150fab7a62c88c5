"""A machine that other programs use: on a terminal a build asks, `--wait` waits, and elsewhere it stops with advice."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from gemmdb.cli import build as building
from gemmdb.cli import busy
from gemmdb.cli.busy import Answer
from gemmdb.devices import detect, load
from gemmdb.devices.load import Load
from gemmdb.generators.measure import remeasure as remeasuring
from gemmdb.generators.measure.remeasured import Remeasured
from gemmdb.generators.request import BuildReport
from gemmdb.kernels.config import Config
from gemmdb.key.problem import Problem
from gemmdb.table.writer import Store

pytest.importorskip("torch")
from gemmdb.report.workload import WorkloadReport
from gemmdb.tune import state, timing, tuning
from gemmdb.tune.gained import Timed, gained

BUSY, QUIET = Load(2.0, programs=(("cc1plus", 2.0),)), Load(0.0)
TEXT = "other programs keep 2.0 cores busy (cc1plus 2.0)"
GEMM = Problem.gemm("mm", m=4, n=64, k=64, dtype="fp32", constant_weight=True)
BUILD = ("build", "--arch", "cpu", "--shapes", "one.jsonl", "--out", "mine.db")


class Terminal(io.StringIO):
    """The lines that a user types."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def machine(environment, monkeypatch: pytest.MonkeyPatch) -> list[Load]:
    """The loads that are found, one after the other; the last one stays. It has a workload of one GEMM."""
    loads = [BUSY]
    monkeypatch.setattr(load, "now", lambda *_, threads=None: loads.pop(0) if len(loads) > 1 else loads[0])
    monkeypatch.setattr(busy, "ASK_S", 0.0)
    Path("one.jsonl").write_text(json.dumps({"problem": GEMM.text, "count": 1, "calls": 1}) + "\n")
    return loads


def types(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(text))
    monkeypatch.setattr(busy, "can_ask", lambda: True)


@pytest.mark.parametrize(("typed", "answer"), [
    ("w\n", Answer.WAIT), ("stop\n", Answer.STOP), ("\nwhat\nm\n", Answer.MEASURE), ("Wait\n", Answer.WAIT),
    ("", Answer.STOP),
])  # fmt: skip
def test_answers(monkeypatch, capsys, typed: str, answer: Answer) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    assert busy.ask(TEXT) is answer
    asked = capsys.readouterr()
    assert asked.out == ""
    assert asked.err.startswith(f"gemmdb: {TEXT}\ngemmdb: wait until they end (w), stop (s), or measure anyway (m")
    assert asked.err.count("measure anyway (m") == max(typed.count("\n"), 1)


def test_who_stops_gets_a_line_to_paste(gemmdb, machine, monkeypatch) -> None:
    types(monkeypatch, "s\n")
    done = gemmdb(*BUILD)
    assert done.code == 1
    assert "(w), stop (s)" in done.err
    (step,) = [line for line in done.out.splitlines() if line.startswith("to do")]
    assert step.endswith(
        f"{TEXT}; wait until they end: gemmdb build --arch cpu --shapes one.jsonl --out mine.db --wait 1h"
    )
    assert "not measured yet" not in done.out


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_who_waits_gets_a_build_when_the_machine_is_quiet(gemmdb, machine, monkeypatch) -> None:
    types(monkeypatch, "w\n")
    machine[:] = [BUSY, BUSY, QUIET]
    done = gemmdb(*BUILD)
    assert done.code == 0, done.err
    assert done.err.index("(w), stop (s)") < done.err.index("waiting; Ctrl-C stops") < done.err.rindex("1 to measure")
    assert "1 of 1 measured now" in done.out


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_who_measures_anyway_is_not_asked_again(gemmdb, machine, monkeypatch) -> None:
    types(monkeypatch, "m\n")
    done = gemmdb(*BUILD)
    assert done.code == 0, done.err
    assert done.err.count("(w), stop (s)") == 1
    assert "1 of 1 measured now" in done.out


def parts_of_a_build() -> tuple[BuildReport, BuildReport, BuildReport]:
    """The reports of a build that a busy machine stops twice. One of its first two problems was disturbed, so the
    second part measures it again."""
    Store.open(Path("mine.db")).close()
    one = BuildReport(out=Path("mine.db"), device=detect.cpu(), problems=9, jobs=9, before=1, measured=2, elsewhere=0,
                      rows=4, statuses={"ok": 4}, seconds=60.0, stopped=TEXT, disturbed=1)  # fmt: skip
    two = replace(one, before=2, measured=3, rows=6, statuses={"ok": 5, "slow": 1}, seconds=90.0, disturbed=0)
    return one, two, replace(two, before=5, measured=4, rows=8, statuses={"ok": 8}, seconds=30.0, stopped="")


def recorded_earlier() -> None:
    """Leave what `tune` has recorded of a program with one GEMM."""
    known = state.open_folder(Path("gemmdb-tune"), ["no-such-program"], False)
    known.recorded = True
    known.save()
    line = {"problem": GEMM.resized(64, 512, 512).text, "count": 1, "calls": 9, "device": detect.cpu().text}
    known.workload.write_text(json.dumps(line) + "\n")


def test_what_tune_reports_is_about_all_parts_of_its_build(gemmdb, machine, monkeypatch) -> None:
    recorded_earlier()
    asked, parts = [], iter(parts_of_a_build())
    monkeypatch.setattr(tuning, "build_table", lambda request, progress: asked.append(request.minutes) or next(parts))
    types(monkeypatch, "m\nm\n")
    done = gemmdb("tune", "--budget", "10m", "--table", "mine.db", "--repeats", "0", "--json", "--", "no-such-program")
    assert done.code == 0, done.err
    assert asked == [10, 9, 7.5]
    built = json.loads(done.out)["built"]
    assert [built[name] for name in ("measured", "left", "seconds")] == [8, 0, 180.0]
    assert "built 8 problems in 180 s" in done.err


def test_the_parts_of_a_build_that_goes_on_are_one(gemmdb, machine, monkeypatch) -> None:
    """The minutes are those of all parts, and the report is about all of them."""
    asked, parts = [], iter(parts_of_a_build())
    monkeypatch.setattr(building, "_built", lambda request: asked.append(request.minutes) or [next(parts)])
    types(monkeypatch, "m\nm\n")
    done = gemmdb(*BUILD, "--minutes", "10", "--json")
    assert done.code == 0, done.err
    assert asked == [10, 9, 7.5]
    said = json.loads(done.out)
    names = ("jobs", "before", "measured", "left", "rows", "seconds", "disturbed", "warnings")
    assert [said[name] for name in names] == [9, 1, 8, 0, 18, 180.0, 0, []]
    assert said["statuses"] == {"ok": 17, "slow": 1}


@pytest.mark.parametrize("flags", [(), ("--wait", "0.1s")])
def test_nobody_is_asked_without_a_terminal_or_with_a_wait(gemmdb, machine, monkeypatch, flags) -> None:
    if flags:
        types(monkeypatch, "m\n")
    monkeypatch.setattr(busy, "WAIT", "0.1s")
    done = gemmdb(*BUILD, *flags)
    assert done.code == 1
    assert "(w), stop (s)" not in done.err
    assert done.err.splitlines()[-1] == f"gemmdb: stopped: {TEXT}; --wait 10m waits longer, --wait 0s measures anyway"
    assert "--wait 1h" in done.out


def test_tune_asks_too(gemmdb, machine, monkeypatch) -> None:
    recorded_earlier()
    types(monkeypatch, "s\n")
    done = gemmdb("tune", "--", "no-such-program")
    assert done.code == 1, done.err
    assert "(w), stop (s)" in done.err
    assert done.out.splitlines()[-1].endswith("; wait until they end: gemmdb tune --wait 1h -- no-such-program")
    assert "1.00x" not in done.out


def test_tune_asks_before_it_times_the_program(gemmdb, machine, make_table, monkeypatch) -> None:
    """It has nothing to build. The program, which would fail, is not run."""
    recorded_earlier()
    make_table("mine.db", device=detect.cpu(), of=GEMM.resized(64, 512, 512))
    types(monkeypatch, "s\n")
    done = gemmdb("tune", "--table", "mine.db", "--", "no-such-program")
    assert done.code == 1, done.err
    assert "3/4 build: nothing to build" in done.err
    assert "4/4 not timed: other programs use the machine" in done.err
    assert done.err.splitlines()[-1].startswith(f"gemmdb: stopped: {TEXT}; --wait 10m waits longer")
    paste = "gemmdb tune --table mine.db --wait 1h -- no-such-program"
    assert done.out.splitlines()[-1].endswith(f"{TEXT}; wait until they end: {paste}")
    types(monkeypatch, "s\n")
    found = json.loads(gemmdb("tune", "--table", "mine.db", "--json", "--", "no-such-program").out)
    assert (found["stopped"], found["gained"]) == (TEXT, None)


def test_disturbed_times_of_a_program_are_not_kept(machine, monkeypatch) -> None:
    recorded_earlier()
    runs = [{("mm",): Timed(1, 9, (us,))} for us in (100.0, 50.0)]
    for disturbed in (TEXT, ""):
        found = gained(runs[:1], runs[1:], 2.0, disturbed)
        monkeypatch.setattr(timing.Timing, "gained", lambda *_, found=found: found)
        one = tuning.Tuning(tuning.Request(("no-such-program",), repeats=1), lambda text: None)
        assert one._gained("tables", WorkloadReport("w", ())) == found
        assert (one._known("tables") is None) == bool(disturbed)


def test_verify_asks_too_and_goes_on_with_what_is_left(gemmdb, machine, make_table, monkeypatch) -> None:
    table = str(make_table("own.db", device=detect.cpu()))
    stopped = Remeasured(detect.cpu(), (), stopped=TEXT)
    asked, parts = [], iter((stopped, replace(stopped, stopped="")))
    monkeypatch.setattr(
        remeasuring, "remeasure",
        lambda *_, wait_s, before, **__: asked.append((wait_s, before)) or next(parts),
    )  # fmt: skip
    types(monkeypatch, "m\n")
    done = gemmdb("verify", table, "--remeasure", "1")
    assert (done.code, done.err.count("(w), stop (s)")) == (0, 1)
    assert asked == [(busy.ASK_S, None), (None, stopped)]


@pytest.mark.parametrize("flags", [(), ("--wait", "0.1s")])
def test_verify_stops_where_nobody_can_be_asked(gemmdb, machine, make_table, monkeypatch, flags) -> None:
    monkeypatch.setattr(busy, "WAIT", "0.1s")
    table = str(make_table("own.db", device=detect.cpu()))
    done = gemmdb("verify", table, "--remeasure", "1", *flags)
    assert (done.code, done.out) == (1, f"{table}: no faults found\n")
    said = f"gemmdb: nothing was measured: {TEXT}; --wait 10m waits longer, --wait 0s measures anyway"
    assert done.err.splitlines()[-1] == said
    found = json.loads(gemmdb("verify", table, "--remeasure", "1", "--json", *flags).out)["remeasured"]
    assert (found["problems"], found["stopped"]) == (0, TEXT)


MODEL = """
import torch
model = lambda x, w: torch.nn.functional.linear(x, w.to(x.dtype))
inputs = (torch.ones(8, 64).bfloat16(), torch.ones(32, 64, dtype=torch.int8))
"""


@pytest.fixture
def served(gemmdb, machine, make_table, monkeypatch) -> None:
    """A model, and a table in force that has another kernel than ATen's for it."""
    Path("model.py").write_text(MODEL)
    (text,) = json.loads(gemmdb("compare", "model.py", "--calls", "1", "--wait", "0s", "--json").out)["configs"]
    make_table("mine.db", device=detect.cpu(), of=Problem.parse(text), fast=Config.of("aten", "int8pack_mm"))
    monkeypatch.setenv("GEMMDB_TABLES", "mine.db")


@pytest.mark.parametrize("flags", [(), ("--wait", "0.1s")])
def test_compare_stops_where_nobody_can_be_asked(gemmdb, served, monkeypatch, flags) -> None:
    monkeypatch.setattr(busy, "WAIT", "0.1s")
    done = gemmdb("compare", "model.py", "--calls", "1", *flags)
    assert done.code == 1
    assert done.out.startswith(
        "gain     cannot tell, nothing was timed\nkernels  1 of 1 distinct GEMM not run by ATen\n"
    )
    assert done.err.splitlines()[-2:] == [
        "gemmdb: wait until the others end: gemmdb compare model.py --calls 1 --wait 1h",
        f"gemmdb: stopped: {TEXT}; --wait 10m waits longer, --wait 0s measures anyway",
    ]
    found = json.loads(gemmdb("compare", "model.py", "--calls", "1", "--json", *flags).out)
    assert (found["verdict"], found["stopped"], found["default_us"]) == ("cannot tell", TEXT, None)


@pytest.mark.parametrize(("typed", "code", "stopped"), [("s\n", 1, TEXT), ("m\n", 0, ""), ("w\n", 0, "")])
def test_compare_asks_too(gemmdb, served, machine, monkeypatch, typed, code, stopped) -> None:
    types(monkeypatch, typed)
    machine[:] = [BUSY, BUSY, QUIET]
    done = gemmdb("compare", "model.py", "--calls", "1", "--json")
    assert (done.code, done.err.count("(w), stop (s)")) == (code, 1)
    assert json.loads(done.out)["stopped"] == stopped
    assert ("waiting; Ctrl-C stops" in done.err) == (typed == "w\n")


def test_compare_asks_nobody_where_aten_runs_every_gemm(gemmdb, machine, monkeypatch) -> None:
    types(monkeypatch, "")
    Path("model.py").write_text(MODEL)
    done = gemmdb("compare", "model.py", "--calls", "1")
    assert (done.code, done.err.count("(w), stop (s)")) == (0, 0)
    assert "same kernels" in done.out


def test_a_real_terminal_is_asked(machine) -> None:
    program = (
        "import sys\n"
        "from gemmdb.cli import busy\n"
        "from gemmdb.cli.app import run\n"
        "from gemmdb.devices import load\n"
        "load.now = lambda *_, threads=None: load.Load(2.0)\n"
        "busy.ASK_S = 0.0\n"
        f"sys.exit(run({[*BUILD]!r}))\n"
    )
    ours, theirs = pty.openpty()
    done = subprocess.Popen([sys.executable, "-c", program], stdin=theirs, stderr=theirs, stdout=subprocess.PIPE)
    os.close(theirs)
    said = b""
    while b"measure anyway" not in said:
        said += os.read(ours, 4096)  # Raises OSError if the program ends before.
    os.write(ours, b"s\n")
    threading.Thread(target=_drain, args=(ours,), daemon=True).start()
    out, _ = done.communicate(timeout=60)
    assert done.returncode == 1
    assert b"wait until they end: gemmdb build" in out


def _drain(terminal: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(terminal, 4096):
            pass
