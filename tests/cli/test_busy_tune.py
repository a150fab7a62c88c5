"""A machine that other programs use: `gemmdb tune` asks before it builds and before it times the program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kit.busy import GEMM, TEXT, parts_of_a_build, types

from gemmdb.devices import detect

pytest.importorskip("torch")
from gemmdb.report.workload import WorkloadReport
from gemmdb.tune import state, timing, tuning
from gemmdb.tune.gained import Timed, gained


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
