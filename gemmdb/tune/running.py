"""Runs a command and records or times torch.compile's graphs in every Python process that it starts."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, MappingProxyType

from gemmdb.errors import InputError
from gemmdb.settings import DISABLED, Settings

STARTUP = Path(__file__).with_name("startup.py")
STOPPED_CODES = (130, 143)
"""Exit codes of a program that Ctrl-C or SIGTERM stopped, as they stop servers."""
Say = Callable[[str], None]
_SHELL_SIGNAL_BASE = 128
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_WAIT_S = 3600.0


@dataclass(frozen=True)
class Recorded:
    """The result of a run: the command's exit code (128 + n after signal n), the number of Python processes started,
    the number that imported torch, and why recording failed to start, one line per process. `signalled`: whether a
    signal to end came meanwhile, such as Ctrl-C."""

    exit_code: int
    pythons: int
    torches: int
    failures: tuple[str, ...]
    signalled: bool = False

    @property
    def stopped(self) -> bool:
        """Whether the user stopped the command. A program that was compiling may then end with any exit code."""
        return self.exit_code in STOPPED_CODES or (self.signalled and self.exit_code != 0)

    @property
    def failed(self) -> bool:
        """Whether the command ended with an error of its own."""
        return self.exit_code != 0 and not self.stopped

    @property
    def obstacle(self) -> str:
        """Return why a run recorded nothing."""
        if Settings.read().disabled:
            return f"{DISABLED}; unset it for this command"
        if self.failures:
            return f"recording could not start in {self.failures[0]}"
        if not self.pythons:
            ignore = "python -I, -E and -S ignore it, sudo and containers drop it"
            return f"no Python process of COMMAND read PYTHONPATH: {ignore}"
        if not self.torches:
            processes = "process" if self.pythons == 1 else "processes"
            return f"{self.pythons} Python {processes} ran, none imported torch"
        if self.exit_code > _SHELL_SIGNAL_BASE:
            number = self.exit_code - _SHELL_SIGNAL_BASE
            return f"signal {number} ended COMMAND before torch.compile had compiled a GEMM"
        return "torch was imported, but torch.compile compiled no GEMM: does the program compile and run its model?"


def run(
    command: Sequence[str],
    target: Path,
    what: str = "record",
    environment: Mapping[str, str] = MappingProxyType({}),
    stdout: int | None = None,
) -> Recorded:
    """Run `command` to completion with stdin, stdout and stderr passed through; signals that would end this process go
    to the command. `what`: `record` appends the compiled GEMMs to the workload `target`; `without` and `with` write the
    time of each compiled graph, without and with gemmdb, to the folder `target`; `settle` writes nothing there, and its
    compiles time what a frozen one cannot. `environment`: extra variables;
    `stdout`: the file descriptor of its stdout, None for this process's own. Raises InputError if it cannot start."""
    with tempfile.TemporaryDirectory(prefix="gemmdb-record-") as name:
        folder = Path(name)
        (folder / "sitecustomize.py").write_text(STARTUP.read_text())
        (folder / "target").write_text(f"{what}\n{target.absolute()}")
        former = os.environ.get("PYTHONPATH")
        path = f"{folder}{os.pathsep}{former}" if former else str(folder)
        exit_code, signalled = _run(command, {**os.environ, "PYTHONPATH": path, **environment}, stdout)
        failures = tuple(path.read_text() for path in sorted(folder.glob("failed-*")))
        pythons, torches = (len(list(folder.glob(f"{kind}-*"))) for kind in ("python", "torch"))
        return Recorded(exit_code, pythons, torches, failures, signalled)


def check_command(command: Sequence[str]) -> None:
    """Raise InputError for a command that no system would find, before anything is written for it."""
    name = command[0]
    if shutil.which(name) is not None:
        return
    path = Path(name)
    if not path.exists():
        raise InputError(f"cannot run {name!r}: No such file or directory")
    if path.is_file() and os.access(path, os.X_OK):
        raise InputError(f"cannot run {name!r}: it is not in a folder of PATH; ./{name} names the file here")
    why = "it is a folder" if path.is_dir() else "it is not executable"
    program = name if path.suffix == ".py" and path.is_file() else "PROGRAM.py"
    raise InputError(f"cannot run {name!r}: {why}; a command such as `{shlex.join(['python', program])}` is expected")


def _run(command: Sequence[str], environment: dict[str, str], stdout: int | None) -> tuple[int, bool]:
    """Return the command's exit code, and whether a signal to end came meanwhile."""
    with _signals_passed_on() as (pass_to, came):
        try:
            child = subprocess.Popen(command, env=environment, stdout=stdout)
        except OSError as error:
            check_command(command)
            raise InputError(f"cannot run {command[0]!r}: {error.strerror or error}") from error
        pass_to(child)
        code = None
        # A wait without a timeout blocks in one system call. A signal that arrives just before the call does not
        # interrupt it, and Python would run the handler only after the child ends. With a timeout, Python checks every
        # 50 ms.
        while code is None:
            with suppress(subprocess.TimeoutExpired):
                code = child.wait(timeout=_WAIT_S)
    return code if code >= 0 else _SHELL_SIGNAL_BASE - code, bool(came)


@contextmanager
def _signals_passed_on() -> Iterator[tuple[Callable[[subprocess.Popen[bytes]], None], Sequence[int]]]:
    """Inside the block, signals go to a child instead of ending this process, so that the result can be reported.
    Yields a function that sets the child, and the signals so far; those that arrive earlier are queued for it."""
    children: list[subprocess.Popen[bytes]] = []
    early: list[int] = []
    came: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        if not children:
            early.append(number)
        elif not (number == signal.SIGINT and _in_foreground()):
            children[0].send_signal(number)

    def pass_to(child: subprocess.Popen[bytes]) -> None:
        children.append(child)
        for number in early:
            child.send_signal(number)

    former = {number: signal.signal(number, forward) for number in _PASSED_ON}
    try:
        yield pass_to, came
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _in_foreground() -> bool:
    """Return whether Ctrl-C at the terminal also reaches the child: the terminal signals the whole foreground group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        return False
    with suppress(OSError), os.fdopen(terminal):
        return os.tcgetpgrp(terminal) == os.getpgrp()
    return False
