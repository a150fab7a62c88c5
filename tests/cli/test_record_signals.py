"""`gemmdb record` passes signals to its command, whenever they come."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gemmdb.tune import running
from gemmdb.tune.running import run


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_go_to_the_command(environment, number):
    program = (
        f"import signal, sys, time\nsignal.signal({int(number)}, lambda *_: sys.exit(5))\n"
        "print('ready', flush=True)\ntime.sleep(90)"
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


READY_THEN_FIVE = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
pathlib.Path("ready").touch()
time.sleep(20)
"""


def await_ready() -> None:
    while not Path("ready").exists():
        time.sleep(0.01)


def test_a_signal_while_the_command_starts_is_kept_for_it(environment, tmp_path: Path, monkeypatch):
    class Slow(subprocess.Popen):
        """A start that returns when the command already runs, and after a signal."""

        def __init__(self, *args, **kwargs) -> None:
            super().__init__(*args, **kwargs)
            await_ready()
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(running.subprocess, "Popen", Slow)
    assert run([sys.executable, "-c", READY_THEN_FIVE], tmp_path / "w.jsonl").exit_code == 5


def test_a_signal_that_interrupts_no_system_call_goes_to_the_command(environment, tmp_path: Path):
    """The kernel gives the signal to another thread here. One that comes just before the wait looks the same: the
    system call goes on, and Python's handler waits for the main thread."""

    def send() -> None:
        await_ready()
        os.kill(os.getpid(), signal.SIGTERM)

    other = threading.Thread(target=send)
    other.start()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        assert run([sys.executable, "-c", READY_THEN_FIVE], tmp_path / "w.jsonl").exit_code == 5
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        other.join()
