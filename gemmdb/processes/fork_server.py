"""A process that imports torch once and then forks: a fork starts in milliseconds, a new interpreter in seconds.

Each fork is independent: it has its own session, and a crash does not affect the next one, since the server itself does
no work. The server only imports, so no thread and no GPU context is copied.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gemmdb.errors import GemmdbError
from gemmdb.processes import child

FORKS = sys.platform == "linux"
"""On other platforms, system libraries fail in a process that was forked after they were loaded."""
BOOT = "import sys; from gemmdb.processes.fork_server import main; main(sys.argv[1:])"
STARTS = 3
"""Attempts to start the server for one fork."""
NUMBER = struct.Struct("=q")
"""A limit of memory in bytes (0: none), a process id, or how a process ended: its exit code, or minus its signal."""
PIPES = 4
"""Requests, replies and lifeline of a fork (see `child.main`), and the pipe that reports its exit code."""


@dataclass
class Forked:
    """A fork of the server. It has the methods of `subprocess.Popen` that a pool needs."""

    pid: int
    _status: int
    _code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or minus the signal; None while it runs."""
        return self._read(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, or minus the signal. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        code = self._read(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
        return code

    def _read(self, limit_s: float | None) -> int | None:
        if self._code is None and select.select([self._status], [], [], limit_s)[0]:
            found = os.read(self._status, NUMBER.size)
            os.close(self._status)
            # Nothing is read if the server was killed: most likely for memory, along with its forks.
            self._code = NUMBER.unpack(found)[0] if found else -signal.SIGKILL
        return self._code


@dataclass
class ForkServer:
    """Starts forks of a process that has imported `modules`. `environment` is added to this process's environment. The
    server starts with the first fork, and again if it died."""

    environment: Mapping[str, str] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    _process: subprocess.Popen[bytes] | None = None
    _socket: socket.socket | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, descriptors: tuple[int, int, int], memory: int | None) -> Forked:
        """Start a fork that serves these pipes (see `child.main`) within `memory` bytes of address space. Raises
        GemmdbError if the server does not start."""
        for _ in range(STARTS):
            found = self._forked(descriptors, memory)
            if found is not None:
                return found
            self.close()  # It was killed during its imports, or so recently that it still seemed to run.
        raise GemmdbError("the process that isolated processes fork from ended")

    def _forked(self, descriptors: tuple[int, int, int], memory: int | None) -> Forked | None:
        read_status, write_status = os.pipe()
        try:
            with self._lock:
                connection = self._running()
                socket.send_fds(connection, [NUMBER.pack(memory or 0)], [*descriptors, write_status])
        except (BrokenPipeError, ConnectionResetError):
            # A killed server closes its socket a moment before its parent can see that it ended.
            os.close(read_status)
            return None
        except OSError as error:
            os.close(read_status)
            raise GemmdbError(f"the process that isolated processes fork from does not start: {error}") from error
        finally:
            os.close(write_status)
        found = os.read(read_status, NUMBER.size)
        if not found:
            os.close(read_status)
            return None
        return Forked(NUMBER.unpack(found)[0], read_status)

    def close(self) -> None:
        """End the server. Its forks keep running."""
        with self._lock:
            process, self._process = self._process, None
            if self._socket is not None:
                self._socket.close()
                self._socket = None
        if process is not None:
            process.kill()
            process.wait()

    def _running(self) -> socket.socket:
        if self._socket is None or self._process is None or self._process.poll() is not None:
            if self._socket is not None:
                self._socket.close()
            self._socket, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", BOOT, str(theirs.fileno()), *self.modules],
                    env={**os.environ, **self.environment},
                    stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), start_new_session=True,
                )  # fmt: skip
        return self._socket


def main(arguments: list[str]) -> None:
    """Import the modules and fork: `main([SOCKET, MODULE...])`. A missing module fails later, in the task."""
    connection = socket.socket(fileno=int(arguments[0]))
    # Freeze the modules' objects: scanning them in a fork would take a third of a second per collection and copy the
    # pages. The collector stays off until the fork enables it, which makes importing torch a fifth faster.
    gc.disable()
    with _ending_with(connection):
        for module in arguments[1:]:
            with contextlib.suppress(Exception):
                importlib.import_module(module)
    gc.freeze()
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    running: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([connection.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _report(running)
        if connection.fileno() in ready:
            message, descriptors, *_ = socket.recv_fds(connection, NUMBER.size, PIPES)
            if not message:
                return
            _fork(connection, (woken, wake), running, message, descriptors)


@contextlib.contextmanager
def _ending_with(connection: socket.socket) -> Iterator[None]:
    """End this process when the other end of the connection closes. Imports take seconds, and a watching thread is not
    allowed: it would run while this process forks."""

    def look(*_: object) -> None:
        with contextlib.suppress(BlockingIOError):
            if not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                os._exit(1)

    signal.signal(signal.SIGIO, look)
    flags = fcntl.fcntl(connection, fcntl.F_GETFL)
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(connection, fcntl.F_SETFL, flags | os.O_ASYNC)
    look()
    yield
    fcntl.fcntl(connection, fcntl.F_SETFL, flags)
    signal.signal(signal.SIGIO, signal.SIG_DFL)


def _fork(
    connection: socket.socket, wakeup: tuple[int, int], running: dict[int, int], message: bytes, pipes: list[int]
) -> None:
    pid = os.fork()
    if not pid:
        _become(connection, (*wakeup, *running.values(), pipes[-1]), message, pipes[:-1])
    running[pid] = pipes[-1]
    os.write(pipes[-1], NUMBER.pack(pid))
    for pipe in pipes[:-1]:
        os.close(pipe)


def _become(connection: socket.socket, others: tuple[int, ...], message: bytes, pipes: list[int]) -> None:
    """Run the fork: release the server's resources, and serve until the end."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        connection.close()
        for descriptor in others:
            os.close(descriptor)
        gc.enable()
        (memory,) = NUMBER.unpack(message)
        child.main([*map(str, pipes), *([str(memory)] if memory else [])])
    finally:
        os._exit(1)


def _report(running: dict[int, int]) -> None:
    """Report the exit codes of the forks that ended."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with contextlib.suppress(BrokenPipeError):
            os.write(running[pid], NUMBER.pack(os.waitstatus_to_exitcode(status)))
        os.close(running.pop(pid))
