"""`gemmdb record` around real programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gemmdb.key.device import Device
from gemmdb.tune.running import STARTUP, run
from gemmdb.workload import entries


def test_passes_streams_and_the_exit_code_through(environment, tmp_path: Path):
    program = "import sys; data = sys.stdin.read(); print(data.upper()); print('e', file=sys.stderr); sys.exit(7)"
    done = subprocess.run(
        [sys.executable, "-m", "gemmdb", "record", "--", sys.executable, "-c", program],
        input="abc", capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 7
    assert done.stdout == "ABC\n"
    assert done.stderr.splitlines()[0] == "e"
    assert not (tmp_path / "workload.jsonl").exists()


def test_options_of_the_command_are_not_ours(gemmdb):
    done = gemmdb("record", sys.executable, "-c", "import sys; print(sys.argv[1:])", "--out", "x", "--help")
    assert (done.code, done.out) == (0, "['--out', 'x', '--help']\n")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ([sys.executable, "-c", "pass"], "none imported torch"),
        ([sys.executable, "-I", "-c", "pass"], "python -I"),
        (["true"], "python -I"),
    ],
)
def test_nothing_recorded_says_why(gemmdb, command, words):
    done = gemmdb("record", "--", *command)
    assert done.code == 0
    assert "nothing was recorded" in done.err
    assert words in done.err


def test_nothing_is_recorded_while_gemmdb_is_switched_off(gemmdb, monkeypatch):
    monkeypatch.setenv("GEMMDB_DISABLE", "1")
    assert "nothing was recorded: GEMMDB_DISABLE is set" in gemmdb("record", "--", "true").err


def test_a_command_that_is_not_there(gemmdb):
    done = gemmdb("record", "--", "no-such-program")
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert "no-such-program" in done.err


@pytest.mark.parametrize("out", [".", "missing/workload.jsonl"])
def test_a_workload_that_cannot_be_written(gemmdb, out):
    done = gemmdb("record", "--out", out, "--", "true")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert out in done.err


def test_a_file_that_is_no_workload_is_not_added_to(gemmdb, tmp_path: Path):
    Path("notes.txt").write_text("hello\n")
    done = gemmdb("record", "--out", "notes.txt", "--", "true")
    assert done.code == 2
    assert Path("notes.txt").read_text() == "hello\n"


def test_a_killed_command(environment, tmp_path: Path):
    assert run(["sh", "-c", "kill -9 $$"], tmp_path / "w.jsonl").exit_code == 128 + signal.SIGKILL


def test_a_program_ended_by_a_signal_is_told_apart(environment, tmp_path: Path):
    (tmp_path / "torch.py").write_text("")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import torch, os; os.kill(os.getpid(), 9)"
    assert "signal 9 ended COMMAND" in run([sys.executable, "-c", program], tmp_path / "w.jsonl").obstacle


def test_the_users_own_sitecustomize_still_runs(environment, tmp_path: Path, monkeypatch, capfd):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("MARK = 'theirs'\n")
    monkeypatch.setenv("PYTHONPATH", str(own))
    program = "import sys, sitecustomize; print(sitecustomize.MARK, sys.path[1])"
    assert run([sys.executable, "-c", program], tmp_path / "w.jsonl").exit_code == 0
    assert capfd.readouterr().out == f"theirs {own}\n"


def test_a_broken_sitecustomize_is_reported_as_python_does(environment, tmp_path: Path, monkeypatch, capfd):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import no_such_module\n")
    monkeypatch.setenv("PYTHONPATH", str(own))
    assert run([sys.executable, "-c", "print('on')"], tmp_path / "w.jsonl").exit_code == 0
    done = capfd.readouterr()
    assert done.out == "on\n"
    assert "no_such_module" in done.err


def test_children_of_children_are_recorded_and_torch_is_not_imported(environment, tmp_path: Path):
    inner = "import sys; sys.exit('torch' in sys.modules or 'gemmdb' in sys.modules)"
    outer = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {inner!r}]))"
    recorded = run([sys.executable, "-c", outer], tmp_path / "w.jsonl")
    assert (recorded.exit_code, recorded.pythons, recorded.torches) == (0, 2, 0)


def test_an_interpreter_without_gemmdb_is_named(environment, tmp_path: Path):
    (tmp_path / "torch.py").write_text("")
    program = f"import sys; sys.path[:] = [{str(tmp_path)!r}, *[p for p in sys.path if 'lib' in p]];"
    program += "sys.modules['gemmdb'] = None; import torch; print('ran')"
    recorded = run([sys.executable, "-c", program], tmp_path / "w.jsonl")
    assert (recorded.exit_code, recorded.torches) == (0, 1)
    assert "ModuleNotFoundError" in recorded.obstacle
    assert sys.executable in recorded.obstacle


def test_startup_costs_little(environment, tmp_path: Path):
    def seconds(environ: dict[str, str]) -> float:
        def once() -> float:
            start = sum(os.times()[2:4])
            subprocess.run([sys.executable, "-c", "import json, decimal"], env=environ, check=True)
            return sum(os.times()[2:4]) - start

        return min(once() for _ in range(5))

    (tmp_path / "sitecustomize.py").write_text(STARTUP.read_text())
    plain = seconds(dict(os.environ))
    hooked = seconds({**os.environ, "PYTHONPATH": str(tmp_path)})
    assert hooked - plain < 0.03


TRAIN = """
import torch
linear = torch.nn.Linear(64, 32)
with torch.no_grad():
    compiled = torch.compile(linear)
    for _ in range(3):
        compiled(torch.randn(8, 64))
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_compiled_model_is_recorded_in_every_process(environment, tmp_path: Path, monkeypatch, capfd):
    pytest.importorskip("torch")
    from gemmdb.cli.app import run as run_command

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    Path("train.py").write_text(TRAIN)
    assert run_command(["record", "--", sys.executable, "train.py"]) == 0
    assert "1 problem in workload.jsonl" in capfd.readouterr().err
    lines = [json.loads(line) for line in Path("workload.jsonl").read_text().splitlines()]
    assert any(" m=8 n=32 k=64 " in line["problem"] for line in lines)

    # Again, from a child process and a warm compile cache: the problem is known already.
    Path("outer.py").write_text("import subprocess, sys; subprocess.run([sys.executable, 'train.py'], check=True)")
    assert run_command(["record", "--", sys.executable, "outer.py"]) == 0
    assert "1 problem in workload.jsonl, 0 of them new" in capfd.readouterr().err


RANKS = """
import torch
import torch.distributed as dist
from torch._inductor.compile_fx import compile_fx

dist.init_process_group("gloo")
linear = torch.nn.Linear(64, 32).eval().requires_grad_(False)
backend = compile_fx if dist.get_rank() else "inductor"  # One rank calls Inductor itself, as vLLM does.
compiled = torch.compile(linear, backend=backend)
with torch.no_grad():
    for _ in range(3):
        compiled(torch.randn(8 + dist.get_rank(), 64))
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_every_rank_of_torchrun_is_recorded(environment, tmp_path: Path, monkeypatch, capfd):
    pytest.importorskip("torch")
    from gemmdb.cli.app import run as run_command

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    Path("train.py").write_text(RANKS)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    assert run_command(["record", "--", *torchrun, "train.py"]) == 0
    assert "2 problems in workload.jsonl" in capfd.readouterr().err
    recorded = entries.read(Path("workload.jsonl")).entries
    assert {(entry.problem.m, entry.count, entry.calls) for entry in recorded} == {(8, 1, 3), (9, 1, 3)}
    # torchrun gives each rank one thread, so a table for them is another one than that of the shell.
    assert {Device.parse(entry.device).units for entry in recorded} == {1}
