"""`gemmdb doctor` here, and on machines that lack something."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from gemmdb.cli import probe
from gemmdb.cli.doctor import BROKEN, MISSING, OK, OPTIONAL, Check, checks
from gemmdb.cli.probe import Memory
from gemmdb.devices import detect
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch) -> Path:
    """Where successes are remembered."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def found(name: str) -> Check:
    """The check of that name, without compiling anything."""
    (check,) = [check for check in checks(Memory(), compile_probe=False) if check.name == name]
    return check


@pytest.fixture
def no_torch(monkeypatch, environment):
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.fixture
def tool(tmp_path: Path):
    """Writes a program: `tool(name, what it does)`."""

    def write(name: str, body: str) -> Path:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path

    return write


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_all_of_it_works_here(gemmdb, monkeypatch):
    pytest.importorskip("torch")
    done = gemmdb("doctor", "--json")
    states = {check["name"]: check["state"] for check in json.loads(done.out)["checks"]}
    assert (done.code, done.err.splitlines()[0]) == (0, "gemmdb: importing torch")
    assert (
        "gemmdb: compiling a small function with torch.compile, 5 to 30 s on an idle machine" in done.err.splitlines()
    )
    assert states["torch.compile"] == states["torch"] == states["C++ compiler"] == states["sqlite"] == OK
    assert states["this device"] == OPTIONAL
    assert not {MISSING, BROKEN} & set(states.values())
    begun = sum(os.times()[:4])  # Of processors, here and in processes that it started.
    again = gemmdb("doctor", "--json")
    assert sum(os.times()[:4]) - begun < 3
    assert (again.code, again.err) == (0, "")
    details = {check["name"]: check["detail"] for check in json.loads(again.out)["checks"]}
    assert details["torch.compile"].startswith("compiled and ran a small function (checked ")
    asked = []
    monkeypatch.setattr(probe, "run", lambda command, **environment: asked.append(command) or probe.Outcome(error="no"))
    assert "gemmdb: importing torch" in gemmdb("doctor", "--fresh").err.splitlines()
    assert asked


def test_without_torch_or_compiler(gemmdb, no_torch, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    done = gemmdb("doctor")
    assert done.code == 0
    lines = {line.split(None, 2)[1]: line for line in done.out.splitlines()}
    assert lines["torch"].startswith(MISSING)
    assert lines["torch"].endswith("pip install torch")
    assert lines["C++"].startswith(MISSING)
    assert "torch.compile" not in lines


def test_a_compiler_that_fails_is_broken(no_torch, monkeypatch, tool):
    monkeypatch.setenv("CXX", str(tool("c++", "echo 'no such header: omp.h' >&2\nexit 1")))
    check = found("C++ compiler")
    assert check.state == BROKEN
    assert "no such header" in check.detail


def test_a_broken_table_is_exit_1(gemmdb, no_torch, monkeypatch, tmp_path: Path):
    (tmp_path / "text.db").write_text("no table")
    monkeypatch.setenv("GEMMDB_TABLES", str(tmp_path / "text.db"))
    done = gemmdb("doctor")
    assert done.code == 1
    assert any(line.startswith("broken") and "text.db" in line for line in done.out.splitlines())


def test_a_table_without_rows_is_empty(no_torch, monkeypatch, tmp_path: Path):
    with Store.open(tmp_path / "new.db"):
        pass
    monkeypatch.setenv("GEMMDB_TABLES", str(tmp_path / "new.db"))
    details = [check.detail for check in checks(Memory(), compile_probe=False) if check.name == "table"]
    assert f"{tmp_path / 'new.db'}: empty" in details


def test_a_table_for_this_device_is_named(no_torch, table, monkeypatch):
    assert found("this device").state == OPTIONAL
    (device,) = Table.open(table).devices()
    monkeypatch.setattr(detect, "native", lambda: device)
    check = found("this device")
    assert check.state == OK
    assert str(table) in check.detail


@pytest.mark.parametrize("gpu", [False, True])
def test_nvcc_is_suggested_where_there_is_a_gpu(no_torch, monkeypatch, tmp_path, tool, gpu):
    device = detect.cpu() if gpu else None  # Only whether there is one counts here.
    monkeypatch.setattr(detect, "cuda", lambda: device)
    for name in ("CUDACXX", "CUDA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    check = found("nvcc")
    assert (check.state, "CUDA_HOME" in check.remedy) == (MISSING if gpu else OPTIONAL, gpu)
    cutlass = found("nvidia-cutlass")
    assert cutlass.state == OK or bool(cutlass.remedy) is gpu
    tool("nvcc", "echo 'Cuda compilation tools, release 13.0, V13.0.88'")
    check = found("nvcc")
    assert (check.state, "release 13.0" in check.detail) == (OK, True)


@pytest.mark.parametrize(("name", "value", "known"), [
    ("GEMMDB_LOG", "verbose", "DEBUG, INFO"), ("GEMMDB_LOG", "info", ""), ("GEMMDB_LOG", "WARN", ""),
    ("GEMMDB_CONFIRM", "no", "known: 0, 1"), ("GEMMDB_CONFIRM", "0", ""),
    ("GEMMDB_ON_MISS", "perhaps", "live"), ("GEMMDB_ON_MISS", "aten", ""),
])  # fmt: skip
def test_a_variable_that_gemmdb_does_not_understand_is_broken(no_torch, monkeypatch, name, value, known):
    monkeypatch.setenv(name, value)
    check = found(name)
    assert (check.state, value in check.detail) == (BROKEN if known else OK, True)
    assert known in check.detail


def test_a_success_is_remembered_until_something_changes(tool, tmp_path: Path, monkeypatch):
    log, words = tmp_path / "log", []
    command = [str(tool("check", f"echo ran >> {log}; echo fine"))]

    def run(fresh: bool = False) -> probe.Outcome:
        return Memory(fresh, words.append).run("a", "checking a", command)

    assert (run().out, run().out, words) == ("fine\n", "fine", ["checking a"])
    assert run().seconds_ago is not None
    assert run(fresh=True).seconds_ago is None
    monkeypatch.setenv("CXX", "another")
    assert run().seconds_ago is None
    tomorrow = time.time() + probe.FRESH_S + 9
    monkeypatch.setattr(probe.time, "time", lambda: tomorrow)
    assert run().seconds_ago is None
    assert len(log.read_text().splitlines()) == 4


def test_a_failure_is_not_remembered_and_a_broken_memory_is_none(tool, cache: Path):
    bad = [str(tool("check", "echo no >&2; exit 3"))]
    assert [Memory().run("a", "", bad).error.endswith(": no") for _ in "ab"] == [True, True]
    good = [str(tool("check", "echo fine"))]
    for text in ("", "[]", '{"a": 3}', '{"a": {"state": 1, "out": [], "at": "x"}}', "[" * 9999):
        cache.joinpath("gemmdb").mkdir(parents=True, exist_ok=True)
        cache.joinpath("gemmdb", "doctor.json").write_text(text)
        assert Memory().run("a", "", good).seconds_ago is None
    cache.joinpath("gemmdb", "doctor.json").unlink()
    cache.joinpath("gemmdb", "doctor.json").mkdir()
    assert Memory().run("a", "", good).out == "fine\n"


@pytest.mark.parametrize(
    ("seconds", "said"), [(1, "just now"), (60, "60 s ago"), (600, "10 min ago"), (9000, "2 h ago")]
)
def test_a_length_of_time_is_in_words(seconds, said):
    assert probe.ago(seconds) == said
