"""`gemmdb demo` while other programs use the machine."""

import subprocess
from pathlib import Path

import pytest

from gemmdb.cli import demo as command
from gemmdb.tune import demo


@pytest.mark.parametrize(("flags", "waits"), [((), []), (("--wait", "0s"), ["--wait", "0s"])])
def test_a_demo_that_a_busy_machine_stops_says_how_to_run_it_again(gemmdb, monkeypatch, flags, waits):
    """It measured for 13 minutes what nobody could use."""
    ran: list[list[str]] = []

    def run(line, **_):
        ran.append(line[3:])
        return subprocess.CompletedProcess(line, demo.BUSY if line[3] == "build" else 0)

    monkeypatch.setattr(demo.subprocess, "run", run)
    monkeypatch.setattr(command, "require", lambda *_: None)
    done = gemmdb("demo", "--folder", "here", "--quick", *flags)
    assert done.code == 1
    assert [line[0] for line in ran] == ["record", "build"]
    assert [*waits, "--out", str(Path("here", "table.db"))] == ran[1][-2 - len(waits) :]
    assert done.err.splitlines()[-1].endswith("run it when the machine is idle: gemmdb demo --folder here --quick")
