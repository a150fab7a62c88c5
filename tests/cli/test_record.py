"""`gemmdb record` around real programs, and the signals that it passes to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gemmdb.key.device import Device
from gemmdb.tune import running
from gemmdb.tune.running import STARTUP, run
from gemmdb.workload import entries

WORKLOAD = Path("workload.jsonl")


def test_passes_streams_and_the_exit_code_through(environment):
    program = "import sys; data = sys.stdin.read(); print(data.upper()); print('e', file=sys.stderr); sys.exit(7)"
    done = subprocess.run(
        [sys.executable, "-m", "gemmdb", "record", "--", sys.executable, "-c", program],
        input="abc", capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr.splitlines()[0]) == (7, "ABC\n", "e")
    assert not WORKLOAD.exists()


def test_options_of_the_command_are_not_ours(gemmdb):
    done = gemmdb("record", sys.executable, "-c", "import sys; print(sys.argv[1:])", "--out", "x", "--help")
    assert (done.code, done.out) == (0, "['--out', 'x', '--help']\n")


@pytest.mark.parametrize(("command", "disabled", "words"), [
    ([sys.executable, "-c", "pass"], "", "none imported torch"), (["true"], "", "python -I"),
    ([sys.executable, "-I", "-c", "pass"], "", "python -I"), (["true"], "1", "GEMMDB_DISABLE is set"),
])  # fmt: skip
def test_nothing_recorded_says_why(gemmdb, monkeypatch, command, disabled, words):
    monkeypatch.setenv("GEMMDB_DISABLE", disabled)
    done = gemmdb("record", "--", *command)
    assert done.code == 0
    assert "nothing was recorded: " in done.err
    assert words in done.err


@pytest.mark.parametrize(("out", "words"), [
    ("/proc/workload.jsonl", "cannot be written"), ("missing/workload.jsonl", "check its folder"),
    ("x" * 300, "cannot be written (File name too long)"), (".", "is a folder"), ("/dev/full", "not a regular file"),
])  # fmt: skip
def test_a_file_that_cannot_be_written_is_refused_before_the_program_runs(gemmdb, out, words):
    done = gemmdb("record", "--out", out, "--", "touch", "ran")
    done.refused(out[:100], words)
    assert not Path("ran").exists()


def test_the_check_of_the_file_changes_nothing(gemmdb):
    known = entries.line("uncovered", "conv", 1) + "\n"
    WORKLOAD.write_text(known)
    Path("link.jsonl").symlink_to("target.jsonl")
    for out in (str(WORKLOAD), "new.jsonl", "link.jsonl"):
        assert gemmdb("record", "--out", out, "--", "true").code == 0
    assert WORKLOAD.read_text() == known
    assert not Path("new.jsonl").exists()
    assert not Path("target.jsonl").exists()
    assert Path("link.jsonl").is_symlink()


def test_a_killed_command(environment):
    assert run(["sh", "-c", "kill -9 $$"], WORKLOAD).exit_code == 128 + signal.SIGKILL


def test_a_program_ended_by_a_signal_is_told_apart(environment, tmp_path: Path):
    (tmp_path / "torch.py").write_text("")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import torch, os; os.kill(os.getpid(), 9)"
    assert "signal 9 ended COMMAND" in run([sys.executable, "-c", program], WORKLOAD).obstacle


@pytest.mark.parametrize(("own", "program", "out", "err"), [
    ("MARK = 'theirs'", "import sys, sitecustomize; print(sitecustomize.MARK, sys.path[1])", "theirs FOLDER\n", ""),
    ("import no_such_module", "print('on')", "on\n", "no_such_module"),
])  # fmt: skip
def test_the_users_own_sitecustomize_still_runs(environment, tmp_path, monkeypatch, capfd, own, program, out, err):
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(own)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    assert run([sys.executable, "-c", program], WORKLOAD).exit_code == 0
    done = capfd.readouterr()
    assert done.out == out.replace("FOLDER", str(folder))
    assert err in done.err


def test_children_of_children_are_recorded_and_torch_is_not_imported(environment):
    inner = "import sys; sys.exit('torch' in sys.modules or 'gemmdb' in sys.modules)"
    outer = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {inner!r}]))"
    recorded = run([sys.executable, "-c", outer], WORKLOAD)
    assert (recorded.exit_code, recorded.pythons, recorded.torches) == (0, 2, 0)


def test_an_interpreter_without_gemmdb_is_named(environment, tmp_path: Path):
    (tmp_path / "torch.py").write_text("")
    program = f"import sys; sys.path[:] = [{str(tmp_path)!r}, *[p for p in sys.path if 'lib' in p]];"
    program += "sys.modules['gemmdb'] = None; import torch; print('ran')"
    recorded = run([sys.executable, "-c", program], WORKLOAD)
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
    assert seconds({**os.environ, "PYTHONPATH": str(tmp_path)}) - seconds(dict(os.environ)) < 0.03


# A signal that arrives just before a system call does not interrupt it: one long sleep would outlast the test.
UNTIL_SIGNALED = """
import signal, sys, time

def wait():
    for _ in range(900):
        time.sleep(0.1)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_go_to_the_command(environment, number):
    program = (
        f"{UNTIL_SIGNALED}\nsignal.signal({int(number)}, lambda *_: sys.exit(5)); print('ready', flush=True); wait()"
    )
    # A session of its own: no terminal that would deliver the signal to the command by itself.
    process = subprocess.Popen(
        [sys.executable, "-m", "gemmdb", "record", "--", sys.executable, "-c", program],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 5
    assert "exit code 5" in err


READY_THEN_FIVE = f"""{UNTIL_SIGNALED}
import pathlib
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
signal.pthread_sigmask(signal.SIG_UNBLOCK, {{signal.SIGTERM}})
pathlib.Path("ready").touch()
wait()
"""


def await_ready() -> None:
    while not Path("ready").exists():
        time.sleep(0.01)


def test_a_signal_while_the_command_starts_is_kept_for_it(environment, monkeypatch):
    class Slow(subprocess.Popen):
        """A start that returns when the command already runs, and after a signal."""

        def __init__(self, *args, **kwargs) -> None:
            super().__init__(*args, **kwargs)
            await_ready()
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(running.subprocess, "Popen", Slow)
    assert run([sys.executable, "-c", READY_THEN_FIVE], WORKLOAD).exit_code == 5


def test_a_signal_that_interrupts_no_system_call_goes_to_the_command(environment):
    """The kernel gives the signal to another thread here. One that comes just before the wait looks the same: the
    system call goes on, and Python's handler waits for the main thread."""

    def send() -> None:
        await_ready()
        os.kill(os.getpid(), signal.SIGTERM)

    other = threading.Thread(target=send)
    other.start()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        assert run([sys.executable, "-c", READY_THEN_FIVE], WORKLOAD).exit_code == 5
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        other.join()


TRAIN = """
import torch
linear = torch.nn.Linear(64, 32)
with torch.no_grad():
    compiled = torch.compile(linear)
    for _ in range(3):
        compiled(torch.randn(8, 64))
"""
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
def test_a_compiled_model_is_recorded_in_every_process(gemmdb, tmp_path: Path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    Path("train.py").write_text(TRAIN)
    done = gemmdb("record", "--", sys.executable, "train.py")
    assert done.code == 0
    assert "1 problem in workload.jsonl" in done.err
    lines = [json.loads(line) for line in WORKLOAD.read_text().splitlines()]
    assert any(" m=8 n=32 k=64 " in line["problem"] for line in lines)

    # Again, from a child process and a warm compile cache: the problem is known already.
    Path("outer.py").write_text("import subprocess, sys; subprocess.run([sys.executable, 'train.py'], check=True)")
    done = gemmdb("record", "--", sys.executable, "outer.py")
    assert done.code == 0
    assert "1 problem in workload.jsonl, 0 of them new" in done.err


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_every_rank_of_torchrun_is_recorded(gemmdb, tmp_path: Path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    Path("train.py").write_text(RANKS)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = gemmdb("record", "--", *torchrun, "train.py")
    assert done.code == 0
    assert "2 problems in workload.jsonl" in done.err
    recorded = entries.read(WORKLOAD).entries
    assert {(entry.problem.m, entry.count, entry.calls) for entry in recorded} == {(8, 1, 3), (9, 1, 3)}
    # torchrun gives each rank one thread, so a table for them is another one than that of the shell.
    assert {Device.parse(entry.device).units for entry in recorded} == {1}
