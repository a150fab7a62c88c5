"""Isolated processes: started fresh, pinged, limited in time and memory, restarted after a failure."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

from gemmdb.errors import GemmdbError
from gemmdb.processes.child import Reply, Task
from gemmdb.processes.fork_server import FORKS, Forked, ForkServer
from gemmdb.table.measurement import Status

START_S = 120.0
"""Time limit for a new process to reply to its first ping."""
STARTS = 3
"""Attempts to start a process that dies immediately: something else may have killed it."""

BOOT = "import sys; from gemmdb.processes.child import main; main(sys.argv[1:])"
"""The code that a new interpreter runs. With `-m` the module would be loaded twice, and its classes would not
unpickle."""


class Stopped(GemmdbError):
    """The pool was closed while a task was running."""


@dataclass(frozen=True)
class Limits:
    """`graceful_s`: time between asking a late process to end and SIGTERM; `terminate_s`: between SIGTERM and SIGKILL.
    `memory_bytes`: address space of a process (RLIMIT_AS), None for no limit."""

    graceful_s: float = 0.5
    terminate_s: float = 1.0
    memory_bytes: int | None = None


PING = Task(os.getpid)


@dataclass(frozen=True)
class _Running:
    """A process, the pipes to and from it, and the descriptor that keeps it alive while open."""

    process: subprocess.Popen[bytes] | Forked
    requests: Connection
    replies: Connection
    lifeline: int


@dataclass
class IsolatedProcess:
    """One process at a time, started at the first task. `environment` is added to the parent's environment: the visible
    GPU, the number of threads, the caches. A new process inherits nothing else, so no state of the parent can disturb
    it. `server`: the server to fork from, with its environment; None for a new interpreter. `first`: the first task of
    each new process."""

    environment: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    server: ForkServer | None = None
    first: Task = PING
    _running: _Running | None = None
    _closed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def call(self, limit_s: float, function: Callable[..., Any], *arguments: Any) -> Reply:
        """Run `function(*arguments)` in the process and wait at most `limit_s` seconds.

        A process that does not reply in time is ended (status `timeout`). One that dies gets the status `crash`, or
        `oom` if the OS killed it. Either way, the next call starts a new one. Raises Stopped after `close`, and
        GemmdbError if no process can be started.
        """
        self._ensure()
        return self._exchange(limit_s, Task(function, arguments))

    @property
    def pid(self) -> int | None:
        """The process ID, None while there is no process."""
        return self._running.process.pid if self._running else None

    def end(self) -> None:
        """Ask the process to end, then send SIGTERM, then SIGKILL, to its children too. The next call starts a new
        one."""
        with self._lock:
            running, self._running = self._running, None
        if running is None:
            return
        with contextlib.suppress(OSError):
            running.requests.send(None)
        self._wait_or_kill(running.process)
        for pipe in (running.requests, running.replies):
            with contextlib.suppress(OSError):
                pipe.close()
        os.close(running.lifeline)

    def close(self) -> None:
        """End the process for good. A call in another thread raises Stopped."""
        self._closed = True
        self.end()

    def _ensure(self) -> None:
        for attempt in range(STARTS):
            with self._lock:
                if self._closed:
                    raise Stopped("the process is closed")
                if self._running is not None:
                    return
                self._running = self._start()
            reply = self._exchange(START_S, self.first)
            if reply.status is Status.OK:
                return
            self.end()
            if reply.status not in (Status.CRASH, Status.OOM) or attempt + 1 == STARTS:
                raise GemmdbError(f"an isolated process does not start: {reply.status}: {reply.detail}")

    def _start(self) -> _Running:
        (read_request, write_request), (read_reply, write_reply), (read_life, write_life) = (os.pipe() for _ in "123")
        pipes, memory = (read_request, write_reply, read_life), self.limits.memory_bytes
        requests, replies = Connection(write_request), Connection(read_reply)
        process: subprocess.Popen[bytes] | Forked
        try:
            if self.server and FORKS:
                process = self.server.start(pipes, memory)
            else:
                # Its own session: an interrupt at the terminal reaches only the parent, and killing the group ends
                # compilers.
                process = subprocess.Popen(
                    [sys.executable, "-c", BOOT, *map(str, pipes), *([] if memory is None else [str(memory)])],
                    env={**os.environ, **self.environment},
                    stdin=subprocess.DEVNULL, pass_fds=pipes, start_new_session=True,
                )  # fmt: skip
        finally:
            for descriptor in pipes:
                os.close(descriptor)
        return _Running(process, requests, replies, write_life)

    def _exchange(self, limit_s: float, task: Task) -> Reply:
        running = self._running
        if running is None:
            raise Stopped("the process is closed")
        try:
            running.requests.send(task)
            if not self._wait(running.replies, limit_s):
                self.end()
                return Reply(status=Status.TIMEOUT, detail=f"no answer within {limit_s:g} s")
            reply = running.replies.recv()
        except (EOFError, OSError):
            if self._closed:
                raise Stopped("the process was closed") from None
            return self._died(running.process)
        if not isinstance(reply, Reply):
            raise GemmdbError("an isolated process sent something that is not a reply")
        return reply

    def _wait(self, replies: Connection, limit_s: float) -> bool:
        until = monotonic() + limit_s
        while not self._closed and (left := until - monotonic()) > 0:
            if replies.poll(min(left, 0.2)):
                return True
        if self._closed:
            raise Stopped("the process was closed")
        return False

    def _died(self, process: subprocess.Popen[bytes] | Forked) -> Reply:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(self.limits.graceful_s)
        code = process.poll()
        self.end()
        if code is None or code >= 0:
            return Reply(status=Status.CRASH, detail=f"the process exited with code {code}")
        name = signal.Signals(-code).name
        # Only the kernel's out-of-memory killer sends SIGKILL here.
        status = Status.OOM if -code == signal.SIGKILL else Status.CRASH
        return Reply(status=status, detail=f"the process was ended by {name}")

    def _wait_or_kill(self, process: subprocess.Popen[bytes] | Forked) -> None:
        try:
            process.wait(self.limits.graceful_s)
        except subprocess.TimeoutExpired:
            _signal_group(process, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self.limits.terminate_s)
        _signal_group(process, signal.SIGKILL)
        process.wait()


def spread(processes: Sequence[IsolatedProcess], limit_s: float, tasks: Sequence[Task]) -> list[Reply]:
    """Run tasks on several processes in parallel, each on a free one. The replies are in task order."""
    free = list(processes)

    def run(task: Task) -> Reply:
        process = free.pop()
        try:
            return process.call(limit_s, task.function, *task.arguments)
        finally:
            free.append(process)

    with ThreadPoolExecutor(len(processes)) as executor:
        return list(executor.map(run, tasks))


def _signal_group(process: subprocess.Popen[bytes] | Forked, number: signal.Signals) -> None:
    # The group outlives its leader: a compiler may still be running in it.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
