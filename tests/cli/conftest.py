"""A table with real rows, and two ways to run the command: in this process, and as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from kit import schemas
from kit.busy import BUSY, GEMM

from gemmdb.cli import busy
from gemmdb.cli.app import run
from gemmdb.devices import load
from gemmdb.devices.load import Load
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain, installed
from gemmdb.table import catalog
from gemmdb.table.measurement import Measurement, Protocol, Status, Times
from gemmdb.table.writer import Store

DEVICE = Device("cpu", "cpu", "Example CPU", 2, isa="avx2")
PROTOCOL = Protocol("host", "cold", 1, 30, version=3)
PACKED = Config.of("cpp", "packed_gemm", threads_m=1, threads_n=2, threads_k=1, blocks_m=0, blocks_n=0, blocks_k=0)


@dataclass(frozen=True)
class Done:
    """What a command left: its exit code and what it printed."""

    code: int
    out: str
    err: str

    def refused(self, *words: str) -> None:
        """It was bad input: exit code 2, nothing on stdout, and one line on stderr with these words."""
        assert (self.code, self.out, self.err.count("\n")) == (2, "", 1), self
        assert self.err.startswith("gemmdb: ")
        for word in words:
            assert word in self.err


def measured(problem: Problem, config: Config, us: float, run_id: str, device: Device) -> Measurement:
    """A full row with an interval of 1% around `us`; ATen takes 100."""
    times = Times(us, us * 0.995, us * 1.005, 30, 100.0)
    toolchain = installed("cpu") or Toolchain(torch="2.13.0")
    return Measurement(problem, config, device, PROTOCOL, toolchain, run_id, Status.OK, times)


@pytest.fixture
def problem() -> Problem:
    """The problem that the table has a fast kernel for."""
    return Problem.gemm("mm", m=16, n=512, k=1024, dtype="fp32", constant_weight=True)


@pytest.fixture
def make_table(tmp_path: Path, problem: Problem) -> Callable[..., Path]:
    """Writes a table: `make_table(name, us=...)`, where `us` is the time of the fast kernel."""

    def make(
        name: str, us: float = 50.0, device: Device = DEVICE, of: Problem = problem, fast: Config = PACKED
    ) -> Path:
        path = tmp_path / name
        with Store.open(path) as store:
            run_id = store.begin_run({"command": "tests"})
            times = {ATEN: 100.0, fast: us}
            store.add(measured(of, config, us, run_id, device) for config, us in times.items())
            store.refresh()
        return path

    return make


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """An environment in which no table is found but those that a test names, with `tmp_path` as working directory."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("GEMMDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return os.environ


@pytest.fixture
def table(environment: Mapping[str, str], make_table: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table in force: GEMMDB_TABLES names it."""
    path = make_table("mine.db")
    monkeypatch.setenv("GEMMDB_TABLES", str(path))
    return path


@pytest.fixture
def gemmdb(
    environment: Mapping[str, str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Done]:
    """Runs a command in this process, the shipped tables out of sight: `gemmdb("lookup", "--op", "mm", ...)`."""
    monkeypatch.setattr(catalog, "shipped_tables", lambda: tmp_path / "shipped")

    def command(*arguments: str) -> Done:
        capfd.readouterr()
        code = run(arguments)
        return schemas.checked(Done(code, *capfd.readouterr()), arguments)

    return command


@pytest.fixture
def process(environment: Mapping[str, str]) -> Callable[..., Done]:
    """Runs a command as a process of its own."""

    def command(*arguments: str, **more: str) -> Done:
        done = subprocess.run(start(arguments), capture_output=True, text=True, env={**os.environ, **more}, timeout=120)
        return schemas.checked(Done(done.returncode, done.stdout, done.stderr), arguments)

    return command


def start(arguments: Sequence[str]) -> list[str]:
    """The command line that runs `gemmdb` with this Python."""
    return [sys.executable, "-m", "gemmdb", *arguments]


@pytest.fixture
def flags(problem: Problem) -> list[str]:
    """The flags of `gemmdb lookup` for `problem` on the table's device."""
    sizes = f"--op mm --m {problem.m} --n {problem.n} --k {problem.k} --dtype fp32 --constant-weight"
    return [*sizes.split(), "--device", DEVICE.sku]


@pytest.fixture
def workload(environment: Mapping[str, str], problem: Problem) -> Path:
    """A workload as `gemmdb record` writes it: the problem of the table, two misses, and what is not supported."""
    large = Problem.gemm("addmm", m=512, n=4096, k=4096, dtype="fp32")
    small = Problem.gemm("addmm", m=8, n=64, k=64, dtype="fp32")
    lines: list[dict[str, object]] = [
        {"problem": p.text, "count": 1, "calls": 10, "device": DEVICE.text, "ranges": {}}
        for p in (small, problem, large)
    ]
    lines.append({"uncovered": "bmm", "count": 2, "calls": 20, "device": "", "ranges": {}})
    path = Path("workload.jsonl")
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def machine(environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> list[Load]:
    """The loads that are found, one after the other; the last one stays. It has a workload of one GEMM."""
    loads = [BUSY]
    monkeypatch.setattr(load, "now", lambda *_, threads=None: loads.pop(0) if len(loads) > 1 else loads[0])
    monkeypatch.setattr(busy, "ASK_S", 0.0)
    Path("one.jsonl").write_text(json.dumps({"problem": GEMM.text, "count": 1, "calls": 1}) + "\n")
    return loads
