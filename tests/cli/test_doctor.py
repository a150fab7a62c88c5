"""`gemmdb doctor` here, and on machines that lack something."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gemmdb.cli.doctor import BROKEN, MISSING, OK, Check, checks
from gemmdb.devices import detect


def found(name: str) -> list[Check]:
    """The checks of that name, without compiling anything."""
    return [check for check in checks(compile_probe=False) if check.name == name]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_all_of_it_works_here(gemmdb):
    pytest.importorskip("torch")
    done = gemmdb("doctor", "--json")
    states = {check["name"]: check["state"] for check in json.loads(done.out)["checks"]}
    assert (done.code, done.err) == (0, "")
    assert states["torch.compile"] == states["torch"] == states["C++ compiler"] == states["sqlite"] == OK
    assert states["this device"] == MISSING


def test_without_torch_or_compiler(gemmdb, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    done = gemmdb("doctor")
    assert done.code == 0
    lines = {line.split(None, 2)[1]: line for line in done.out.splitlines()}
    assert lines["torch"].startswith(MISSING)
    assert lines["torch"].endswith("pip install torch")
    assert lines["C++"].startswith(MISSING)
    assert "torch.compile" not in lines


def test_a_compiler_that_fails_is_broken(monkeypatch, environment, tmp_path: Path):
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'no such header: omp.h' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setenv("CXX", str(compiler))
    (check,) = found("C++ compiler")
    assert check.state == BROKEN
    assert "no such header" in check.detail


def test_a_broken_table_is_exit_1(gemmdb, monkeypatch, tmp_path: Path):
    (tmp_path / "text.db").write_text("no table")
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setenv("GEMMDB_TABLES", str(tmp_path / "text.db"))
    done = gemmdb("doctor")
    assert done.code == 1
    assert any(line.startswith("broken") and "text.db" in line for line in done.out.splitlines())


def test_a_table_for_this_device_is_named(environment, table, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert found("this device")[0].state == MISSING
    from gemmdb.table.reader import Table

    (device,) = Table.open(table).devices()
    monkeypatch.setattr(detect, "native", lambda: device)
    (check,) = found("this device")
    assert check.state == OK
    assert str(table) in check.detail


def test_nvcc_is_there_or_is_missed(monkeypatch, environment, tmp_path: Path):
    monkeypatch.setattr(detect, "cuda", detect.cpu)  # Only whether there is one counts here.
    for name in ("CUDACXX", "CUDA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    (check,) = found("nvcc")
    assert check.state == MISSING
    assert "CUDA_HOME" in check.remedy
    compiler = tmp_path / "nvcc"
    compiler.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n")
    compiler.chmod(0o755)
    (check,) = found("nvcc")
    assert (check.state, "release 13.0" in check.detail) == (OK, True)
