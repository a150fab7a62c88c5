"""A machine that other programs use: on a terminal a build asks, `--wait` waits, and elsewhere it stops with advice."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
import threading

import pytest
from kit.busy import BUILD, BUSY, QUIET, TEXT, Terminal, parts_of_a_build, types

from gemmdb.cli import build as building
from gemmdb.cli import busy
from gemmdb.cli.busy import Answer

pytest.importorskip("torch")

ATEN_ALONE = ("--allow", "^aten:")
"""Of a real build, which has nothing to compile then."""


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
    done = gemmdb(*BUILD, *ATEN_ALONE)
    assert done.code == 0, done.err
    assert (
        done.err.index("(w), stop (s)")
        < done.err.index("waiting; Ctrl-C stops")
        < done.err.rindex("1 problem to measure")
    )
    assert "1 of 1 measured now" in done.out


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_who_measures_anyway_is_not_asked_again(gemmdb, machine, monkeypatch) -> None:
    types(monkeypatch, "m\n")
    done = gemmdb(*BUILD, *ATEN_ALONE)
    assert done.code == 0, done.err
    assert done.err.count("(w), stop (s)") == 1
    assert "1 of 1 measured now" in done.out


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
