"""`gemmdb build`: its errors, its progress, and one small build for real."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from kit import lab

from gemmdb.cli.build import terminable
from gemmdb.cli.build_summary import Summary
from gemmdb.cli.busy import patience
from gemmdb.cli.progress import BuildProgress, Pulse, left, sizes
from gemmdb.devices import detect, load
from gemmdb.devices.load import Load
from gemmdb.generators.cluster import build as over
from gemmdb.generators.progress import State
from gemmdb.generators.request import BuildReport
from gemmdb.key.problem import Problem
from gemmdb.outcome import Kind
from gemmdb.table.reader import Table
from gemmdb.table.stats import Gain
from gemmdb.table.writer import Store


@pytest.fixture
def one_problem(environment) -> Path:
    """A shapes file with one small problem."""
    path = Path("one.jsonl")
    path.write_text(json.dumps({"op": "mm", "m": 4, "n": 48, "k": 64, "dtype": "fp32"}) + "\n")
    return path


@pytest.mark.usefixtures("vector_units")
@pytest.mark.timeout(240)
@pytest.mark.slow
def test_a_build_measures_once_and_is_found_by_lookup(gemmdb, one_problem):
    pytest.importorskip("torch")
    done = gemmdb("build", "--arch", "cpu", "--shapes", "one.jsonl", "--verbose")
    assert done.code == 0, done.err
    lines = dict(line.split(None, 1) for line in done.out.splitlines())
    assert lines["problems"] == "1"
    assert " ok" in lines["candidates"]
    assert lines["next"] == "gemmdb tables"
    table = Path(lines["table"])
    assert table.parent == Path(os.environ["XDG_DATA_HOME"]) / "gemmdb"

    again = gemmdb("build", "--arch", "cpu", "--shapes", "one.jsonl", "--json")
    report = json.loads(again.out)
    assert (report["jobs"], report["before"], report["measured"], report["left"]) == (1, 1, 0, 0)
    assert (report["arch"], report["statuses"], report["busy_share"]) == ("cpu", {}, None)

    flags = ["--op", "mm", "--m", "4", "--n", "48", "--k", "64", "--dtype", "fp32", "--json"]
    hit = json.loads(gemmdb("lookup", *flags).out)
    assert (hit["rung"], hit["table"]) == ("exact", str(table))

    done = gemmdb("verify", str(table), "--remeasure", "5")
    assert done.code in (0, 1), done.err
    assert " of 1 verdicts hold" in done.out

    with Table.open(table) as opened:
        ((problem, _),) = opened.decided()
    line = {"problem": problem.text, "count": 1, "calls": 5}
    Path("workload.jsonl").write_text(json.dumps(line) + "\n")
    done = gemmdb("verify", "workload.jsonl", "--requalify", "--wait", "0s", "--json")
    assert done.code in (0, 1), done.err
    found = json.loads(done.out)
    assert (found["remeasured"]["problems"], found["requalified"]["left"], found["requalified"]["unmeasured"]) == (
        1,
        0,
        0,
    )


@pytest.mark.usefixtures("vector_units")
@pytest.mark.timeout(240)
@pytest.mark.slow
def test_a_table_in_a_missing_folder_is_refused(gemmdb, one_problem, tmp_path):
    """As by record, report and export: the name may be mistyped."""
    out = tmp_path / "mistyped" / "table.db"
    done = gemmdb("build", "--arch", "cpu", "--shapes", str(one_problem), "--out", str(out))
    done.refused("mistyped is not a folder; make it, or name another file")
    assert not out.parent.exists()


def test_ctrl_c_keeps_what_was_measured(environment):
    pytest.importorskip("torch")
    shapes = {"op": "mm", "m": [1, 2, 3, 4, 5, 6, 7, 8], "n": 48, "k": 64, "dtype": "fp32"}
    Path("eight.json").write_text(json.dumps([shapes]))
    command = [sys.executable, "-m", "gemmdb", "build", "--arch", "cpu", "--shapes", "eight.json", "--out", "mine.db"]
    command += ["--wait", "0s"]
    # A shell's background job ignores interrupts, and what it starts inherits that.
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed)
    deadline = time.monotonic() + 120
    while rows(Path("mine.db")) == 0 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=110)
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == (
        "gemmdb: interrupted; the results so far are in mine.db: run the same command to continue"
    )
    assert "GEMMDB_TABLES=mine.db" in out
    assert rows(Path("mine.db")) > 0


def test_sigterm_is_as_good_as_ctrl_c():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), terminable():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_build_that_ran_out_of_time_says_what_is_left(gemmdb, one_problem):
    pytest.importorskip("torch")
    done = gemmdb("build", "--arch", "cpu", "--shapes", "one.jsonl", "--minutes", "1e-9", "--json")
    assert done.code == 0
    assert done.err.splitlines()[-1] == (
        "gemmdb: out of time; 1 of 1 are left: run the same command, with more --minutes, to continue"
    )
    assert json.loads(done.out)["left"] == 1


def rows(path: Path) -> int:
    """The measurements in a table; 0 while there is none."""
    if not path.exists() or not path.stat().st_size:
        return 0
    return sum(entry["measurements"] for entry in Table.open(path).summary())


def test_progress_off_a_terminal_is_a_line_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr("gemmdb.cli.progress.QUIET_SECONDS", 0.1)
    problem = Problem.gemm("mm", m=16, n=4096, k=2048, dtype="bf16")
    with BuildProgress() as progress:
        progress.update(State(10, 3, 1, "racing", problem, 65.0))
        time.sleep(0.5)
    done = capsys.readouterr()
    assert done.out == ""
    lines = done.err.splitlines()
    assert len(lines) >= 2
    said = {f"gemmdb: 3/10 problems, racing mm 16x4096x2048 bf16, about {left_s} s left" for left_s in (65, 64)}
    assert set(lines) <= said


def test_the_time_left_goes_down_while_nothing_else_happens(capsys, monkeypatch):
    monkeypatch.setattr("gemmdb.cli.progress.QUIET_SECONDS", 0.1)
    with BuildProgress() as progress:
        progress.update(State(10, 3, 1, "racing", None, 65.0))
        progress._pulse._ends -= 30
        progress._pulse._began -= 30
        time.sleep(0.3)
    assert capsys.readouterr().err.splitlines()[0] == "gemmdb: 3/10 problems, racing (30 s so far), about 35 s left"


def test_a_long_phase_says_how_long_it_lasts(capsys, monkeypatch):
    monkeypatch.setattr("gemmdb.cli.progress.QUIET_SECONDS", 0.1)
    with Pulse() as pulse:
        pulse.begin("compiling")
        pulse._began -= 60
        time.sleep(0.3)
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert (first, second) == ("gemmdb: compiling", "gemmdb: compiling (60 s so far)")


def test_waiting_says_for_how_long_it_has_waited_and_promises_no_end(capsys, monkeypatch):
    monkeypatch.setattr("gemmdb.cli.progress.QUIET_SECONDS", 0.1)
    with BuildProgress() as progress:
        for program in ("sh 1.0", "cc1plus 0.9"):  # It is a step, whatever program is busy.
            progress.update(State(3, 0, 0, f"waiting for a quiet machine, at most 60 s: {program}", None, 37.0))
            progress._pulse._began -= 20
        time.sleep(0.3)
    said = "gemmdb: 0/3 problems, waiting for a quiet machine, at most 60 s: cc1plus 0.9 (40 s so far)"
    assert capsys.readouterr().err.splitlines()[0] == said


def test_progress_begins_with_an_estimate(capsys):
    with BuildProgress() as progress:
        progress.update(State(10, 4, 4, eta_s=90.0))
        progress.update(State(10, 4, 4, "compiling", eta_s=88.0))
    assert capsys.readouterr() == ("", "gemmdb: 6 problems to measure, about 90 s\n")


def test_a_busy_machine_is_named_in_the_estimate(capsys):
    with BuildProgress() as progress:
        progress.update(State(10, 4, 4, eta_s=90.0, slower=2.34))
    assert (
        capsys.readouterr().err
        == "gemmdb: 6 problems to measure, about 90 s, 2.3 times as long as on an idle machine\n"
    )


def test_nothing_to_do_is_not_announced(capsys):
    with BuildProgress() as progress:
        progress.update(State(10, 10, 10))
    assert capsys.readouterr() == ("", "")


def test_words_of_progress():
    assert [left(None), left(30), left(133), left(600), left(3600 * 3)] == [
        "", "about 30 s left", "about 130 s left", "about 10 min left", "about 3.0 h left",
    ]  # fmt: skip
    assert sizes(State(1, 0)) == ""


def test_the_other_devices_follow_the_first(gemmdb, tmp_path, monkeypatch):
    out, other = tmp_path / "t.db", replace(lab.CPU, units=lab.CPU.units + 2)
    with Store.open(out) as store:
        store.add(lab.rows(lab.problem(), {lab.cpp(): 0.5}))
        store.refresh()
    rays = []

    def build(request, progress, say):
        rays.append(request.ray)
        done = {"problems": 1, "jobs": 1, "before": 0, "measured": 1, "elsewhere": 0, "rows": 2, "statuses": {"ok": 2}}
        return [BuildReport(out=out, device=device, **done, seconds=1.0, workers=3) for device in (lab.CPU, other)]

    monkeypatch.setattr(over, "build", build)
    command = ("build", "--arch", "native", "--ray", "10.0.0.5:6379", "--out", str(out))
    found = json.loads(gemmdb(*command, "--json").out)
    (further,) = found["further"]
    assert (found["device"], found["lanes"]) == (lab.CPU.sku, 3)
    assert set(further) == set(found) - {"schema", "version", "further"}
    assert gemmdb(*command).out.count("measurements") == 2
    assert rays == ["10.0.0.5:6379"] * 2


@pytest.mark.parametrize(("text", "found"), [("1m", 60.0), ("90s", 90.0), ("0s", None), (None, 60.0)])
def test_how_long_to_wait(text, found):
    assert patience(text) == found


def test_a_busy_machine_stops_a_build_and_says_who_keeps_it_busy(gemmdb, one_problem, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(load, "now", lambda *_, threads=None: Load(2.0, programs=(("cc1plus", 2.0),)))
    gemmdb("build", "--arch", "cpu", "--shapes", "one.jsonl", "--wait", "soon").refused("--wait 'soon'")
    done = gemmdb("build", "--arch", "cpu", "--shapes", "one.jsonl", "--wait", "0.1s", "--out", "mine.db")
    assert done.code == 1
    assert "other programs keep 2.0 cores busy (cc1plus 2.0)" in done.err.splitlines()[-1]
    lines = dict(line.split(None, 1) for line in done.out.splitlines())
    assert "1.00x" not in done.out
    assert "gemmdb build --arch cpu --shapes one.jsonl --out mine.db" in done.out, lines


def test_times_that_were_all_disturbed_are_no_verdicts(gemmdb, one_problem, monkeypatch):
    pytest.importorskip("torch")
    report = partial_report(rows=2, statuses={"ok": 2}, disturbed=2)
    assert facts_of(report)["over ATen"] == "nothing is known yet"
    assert (
        facts_of(replace(report, disturbed=1))["over ATen"]
        == "no gain, ATen runs every GEMM; 1 GEMM: 1 ATen (measured best)"
    )


def partial_report(**fields) -> BuildReport:
    """The report of a build of one problem."""
    return BuildReport(out=Path("t.db"), device=detect.cpu(), problems=1, jobs=1, before=0, measured=1, elsewhere=0,
                       **fields)  # fmt: skip


def facts_of(report: BuildReport) -> dict[str, str]:
    """The summary of a build whose table has a verdict for ATen."""
    summary = Summary.__new__(Summary)
    summary.report, summary.shapes, summary.verdicts = report, "one.jsonl", [SimpleNamespace(speedup=1.0)]
    summary.found, summary.weighed, summary.gain = None, "one call of each", Gain(1.0, 1.0, 1.0)
    summary.kinds = [Kind.ATEN_BEST]
    return dict(summary.facts())
