"""`gemmdb doctor` here, and on machines that lack something."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gemmdb.cli.doctor import BROKEN, MISSING, OK, Check, checks
from gemmdb.devices import detect
from gemmdb.table.reader import Table


def found(name: str) -> Check:
    """The check of that name, without compiling anything."""
    (check,) = [check for check in checks(compile_probe=False) if check.name == name]
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
def test_all_of_it_works_here(gemmdb):
    pytest.importorskip("torch")
    done = gemmdb("doctor", "--json")
    states = {check["name"]: check["state"] for check in json.loads(done.out)["checks"]}
    assert (done.code, done.err) == (0, "")
    assert states["torch.compile"] == states["torch"] == states["C++ compiler"] == states["sqlite"] == OK
    assert states["this device"] == MISSING


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


def test_a_table_for_this_device_is_named(no_torch, table, monkeypatch):
    assert found("this device").state == MISSING
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
    assert (check.state, "CUDA_HOME" in check.remedy) == (MISSING, gpu)
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
