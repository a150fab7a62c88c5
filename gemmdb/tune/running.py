"""Runs a command and records, or times, what torch.compile makes in every Python process that it starts."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from gemmdb.errors import InputError

STARTUP = Path(__file__).with_name("startup.py")
_SHELL_SIGNAL_BASE = 128
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_WAIT_S = 3600.0


@dataclass(frozen=True)
class Recorded:
    """The result of a run: the exit code of the command (128 + n after signal n), how many Python processes started,
    how many of them imported torch, and why recording failed to start, one line per process."""

    exit_code: int
    pythons: int
    torches: int
    failures: tuple[str, ...]

    @property
    def obstacle(self) -> str:
        """Why a run recorded nothing."""
        if self.failures:
            return f"recording could not start in {self.failures[0]}"
        if not self.pythons:
            ignore = "python -I, -E and -S ignore it, sudo and containers drop it"
            return f"no Python process of COMMAND read PYTHONPATH: {ignore}"
        if not self.torches:
            return f"{self.pythons} Python process(es) ran, none imported torch"
        if self.exit_code > _SHELL_SIGNAL_BASE:
            number = self.exit_code - _SHELL_SIGNAL_BASE
            return f"signal {number} ended COMMAND before torch.compile had compiled a GEMM"
        return "torch was imported, but torch.compile compiled no GEMM: does the program compile and run its model?"


def run(command: Sequence[str], workload: Path) -> Recorded:
    """Run `command` to its end with stdin, stdout and stderr passed through, and append what it compiles to `workload`.
    Signals that would end this process are passed to the command. Raises InputError if it cannot be started."""
    return observe(command, "record", workload, {})


def observe(
    command: Sequence[str], what: str, target: Path, environment: Mapping[str, str], stdout: int | None = None
) -> Recorded:
    """Run `command` as `run` does, with these environment variables; `stdout`: the file descriptor of its stdout, None
    for this process's own. `what`: `record` writes a workload to `target`;
    `without` and `with` write how long each compiled graph takes, without and with gemmdb, into the folder `target`.
    """
    with tempfile.TemporaryDirectory(prefix="gemmdb-record-") as folder:
        here = Path(folder)
        (here / "sitecustomize.py").write_text(STARTUP.read_text())
        (here / "target").write_text(f"{what}\n{target.absolute()}")
        exit_code = _run(command, {**_environment(here), **environment}, stdout)
        failures = (path.read_text() for path in sorted(here.glob("failed-*")))
        return Recorded(
            exit_code,
            len(list(here.glob("python-*"))),
            len(list(here.glob("torch-*"))),
            tuple(failures),
        )


def _environment(folder: Path) -> dict[str, str]:
    """This process's environment with `folder` before everything that PYTHONPATH already has."""
    former = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{former}" if former else str(folder)}


def _run(command: Sequence[str], environment: dict[str, str], stdout: int | None) -> int:
    signals = _Signals()
    with signals.caught():
        try:
            child = subprocess.Popen(command, env=environment, stdout=stdout)
        except OSError as error:
            raise InputError(f"cannot run {command[0]!r}: {error.strerror or error}") from error
        signals.pass_to(child)
        code = _end_of(child)
    return code if code >= 0 else _SHELL_SIGNAL_BASE - code


def _end_of(child: subprocess.Popen[bytes]) -> int:
    """Wait for the child; its return code.

    A wait without a timeout sits in one system call. A signal that arrives just before that call does not interrupt it,
    and Python would run the handler only when the child has ended. With a timeout, Python looks every 50 ms.
    """
    while True:
        try:
            return child.wait(timeout=_WAIT_S)
        except subprocess.TimeoutExpired:
            continue


class _Signals:
    """Passes signals to the child instead of ending, so that the result of the recording can be reported. Those that
    arrive while the child is being started are kept for it."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []

    def pass_to(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child
        for number in self._early:
            child.send_signal(number)

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        if self._child is None:
            self._early.append(number)
        elif not (number == signal.SIGINT and _in_foreground()):
            self._child.send_signal(number)

    @contextmanager
    def caught(self) -> Iterator[None]:
        former = {number: signal.signal(number, self._forward) for number in _PASSED_ON}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)


def _in_foreground() -> bool:
    """Whether a Ctrl-C at the terminal also reaches the child: the terminal sends it to the whole foreground group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
