"""Isolated processes: started anew, pinged, limited in time and memory, restarted after a failure."""

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
"""Time limit for a new process to answer its first ping."""
STARTS = 3
"""How often a process is started that dies at once: something else may have killed it."""

BOOT = "import sys; from gemmdb.processes.child import main; main(sys.argv[1:])"
"""The code that a new interpreter runs. With `-m` the module would be loaded twice, and its classes would not
unpickle."""


Started = subprocess.Popen[bytes] | Forked


class Stopped(GemmdbError):
    """The pool was closed while a task was running."""


@dataclass(frozen=True)
class Limits:
    """`graceful_s`: time between asking a late process to end and SIGTERM; `terminate_s`: between SIGTERM and SIGKILL.
    `memory_bytes`: address space of a process (RLIMIT_AS), None for no limit."""

    graceful_s: float = 0.5
    terminate_s: float = 1.0
    memory_bytes: int | None = None


def ping() -> str:
    """The answer with which a process shows that it runs."""
    return "pong"


PING = Task(ping)


@dataclass
class IsolatedProcess:
    """One process at a time, started at the first task. `environment` is added to the parent's environment: the visible
    GPU, the number of threads, the caches. A new process inherits nothing else, so no state of the parent can disturb
    it. `server`: what it is forked from, with the environment of the server; None for a new interpreter.
    `first`: what each new process does before anything else."""

    environment: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    server: ForkServer | None = None
    first: Task = PING
    _process: Started | None = None
    _requests: Connection | None = None
    _replies: Connection | None = None
    _lifeline: int = -1
    _closed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def call(self, limit_s: float, function: Callable[..., Any], *arguments: Any) -> Reply:
        """Run `function(*arguments)` in the process and wait at most `limit_s` seconds.

        A process that does not answer in time is ended (status `timeout`). One that dies has the status `crash`, or
        `oom` if the kernel killed it. Either way the next call starts a new one. Raises Stopped after `close`, and
        GemmdbError if no process can be started.
        """
        self._ensure()
        return self._exchange(limit_s, Task(function, arguments))

    @property
    def pid(self) -> int | None:
        """The process id, None while there is no process."""
        return self._process.pid if self._process else None

    def end(self) -> None:
        """Ask the process to end, then send SIGTERM, then SIGKILL, also to its children. The next call starts a new
        one."""
        with self._lock:
            process, self._process = self._process, None
            pipes = [pipe for pipe in (self._requests, self._replies) if pipe]
            lifeline, self._lifeline = self._lifeline, -1
        if process is None:
            return
        with contextlib.suppress(OSError):
            pipes[0].send(None)
        self._wait_or_kill(process)
        for pipe in pipes:
            with contextlib.suppress(OSError):
                pipe.close()
        os.close(lifeline)

    def close(self) -> None:
        """End the process for good. A call in another thread raises Stopped."""
        self._closed = True
        self.end()

    def _ensure(self) -> None:
        for attempt in range(STARTS):
            with self._lock:
                if self._closed:
                    raise Stopped("the process is closed")
                if self._process is not None:
                    return
                self._start()
            reply = self._exchange(START_S, self.first)
            if reply.status is Status.OK:
                return
            self.end()
            if reply.status in (Status.CRASH, Status.OOM) and attempt + 1 < STARTS:
                continue
            raise GemmdbError(f"an isolated process does not start: {reply.status}: {reply.detail}")

    def _start(self) -> None:
        (read_request, write_request), (read_reply, write_reply), (read_life, write_life) = (os.pipe() for _ in "123")
        theirs = (read_request, write_reply, read_life)
        self._requests, self._replies, self._lifeline = Connection(write_request), Connection(read_reply), write_life
        try:
            self._process = self._forked(theirs) if self.server and FORKS else self._fresh(theirs)
        finally:
            for descriptor in theirs:
                os.close(descriptor)

    def _forked(self, pipes: tuple[int, int, int]) -> Started:
        assert self.server is not None
        return self.server.start(pipes, self.limits.memory_bytes)

    def _fresh(self, pipes: tuple[int, int, int]) -> Started:
        memory = [] if self.limits.memory_bytes is None else [str(self.limits.memory_bytes)]
        # Its own session: an interrupt at the terminal reaches only the parent, and killing the group ends compilers.
        return subprocess.Popen(
            [sys.executable, "-c", BOOT, *map(str, pipes), *memory],
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            pass_fds=pipes,
            start_new_session=True,
        )

    def _exchange(self, limit_s: float, task: Task) -> Reply:
        process, requests, replies = self._process, self._requests, self._replies
        if process is None or requests is None or replies is None:
            raise Stopped("the process is closed")
        try:
            requests.send(task)
            if not self._wait(replies, limit_s):
                self.end()
                return Reply(status=Status.TIMEOUT, detail=f"no answer within {limit_s:g} s")
            reply = replies.recv()
        except (EOFError, OSError):
            if self._closed:
                raise Stopped("the process was closed") from None
            return self._died(process)
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

    def _died(self, process: Started) -> Reply:
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

    def _wait_or_kill(self, process: Started) -> None:
        for stop, limit_s in ((None, self.limits.graceful_s), (signal.SIGTERM, self.limits.terminate_s)):
            if stop is not None:
                _signal_group(process, stop)
            try:
                process.wait(limit_s)
                break
            except subprocess.TimeoutExpired:
                continue
        _signal_group(process, signal.SIGKILL)
        process.wait()


def spread(processes: Sequence[IsolatedProcess], limit_s: float, tasks: Sequence[Task]) -> list[Reply]:
    """Run tasks on several processes at once, each on a free one. The replies are in the order of the tasks."""
    free = list(processes)

    def run(task: Task) -> Reply:
        process = free.pop()
        try:
            return process.call(limit_s, task.function, *task.arguments)
        finally:
            free.append(process)

    with ThreadPoolExecutor(len(processes)) as executor:
        return list(executor.map(run, tasks))


def _signal_group(process: Started, number: signal.Signals) -> None:
    # The group outlives its leader: a compiler may still run in it after the leader has ended.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
