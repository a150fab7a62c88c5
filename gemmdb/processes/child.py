"""Entry point of the process that runs candidates: `main([REQUESTS, REPLIES, LIFELINE, MEMORY_BYTES])`.

The first three are file descriptors. The process reads pickled tasks from one pipe and sends replies on another. It
exits when its parent ends for any reason: the lifeline is a pipe that only the parent holds open.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import pickle
import resource
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from gemmdb.table.measurement import Status, one_line

_EXHAUSTED = (
    "out of memory", "can't allocate memory", "cannot allocate memory", "outofmemory", "memoryerror",
    "killed signal terminated program",  # GCC, if a subprocess was killed.
    "died due to signal 9",  # nvcc likewise.
    "no space left on device", "disk quota exceeded",  # From a compiler writing files.
    "file too short",  # From the loader: a killed linker left the library incomplete.
)  # fmt: skip


@dataclass(frozen=True)
class Task:
    """A call: an importable function and its arguments. Everything pickles, even for another host."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Reply:
    """The reply to a task: its value, or the status and one line about the exception."""

    value: Any = None
    status: Status = Status.OK
    detail: str = ""


@dataclass(frozen=True)
class RemoteModule:
    """A module that only the calling process imports, so the parent does not wait for torch. Its attributes are the
    module's functions, ready for a Task."""

    module: str

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return functools.partial(_call, self.module, name)


def _call(module: str, name: str, *arguments: Any) -> Any:
    return getattr(importlib.import_module(module), name)(*arguments)


def answer(task: Task) -> Reply:
    """Run the task; an exception becomes a Reply. Out of memory has its own status. So does a killed compiler or other
    program: only the OS kernel kills them, for memory."""
    try:
        return Reply(task.function(*task.arguments))
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        exhausted = out_of_memory(text) or _killed(error)
        return Reply(status=Status.OOM if exhausted else Status.ERROR, detail=one_line(text))


def out_of_memory(text: str) -> bool:
    """Return whether an exception's text reports that host memory, GPU memory or the disk was exhausted. The libraries
    that allocate memory share no exception for it."""
    found = text.lower()
    return any(phrase in found for phrase in _EXHAUSTED)


def _killed(error: BaseException | None) -> bool:
    """Return whether an exception comes from a killed program. Inductor's message does not contain that."""
    while error is not None:
        if getattr(error, "returncode", 0) == -signal.SIGKILL:
            return True
        error = error.__cause__ or error.__context__
    return False


def serve(requests: Connection, replies: Connection) -> bool:
    """Run tasks until the parent sends None (returns True) or ends."""
    while True:
        try:
            task = requests.recv()
        except EOFError:
            return False
        if task is None:
            return True
        reply = answer(task)
        try:
            replies.send(reply)
        except (pickle.PicklingError, TypeError, ValueError, AttributeError) as error:
            replies.send(Reply(status=Status.ERROR, detail=one_line(f"the result does not pickle: {error}")))


def main(arguments: list[str]) -> None:
    """Take over the three inherited pipes and serve; standard output goes to standard error."""
    requests, replies, lifeline = (int(number) for number in arguments[:3])
    if len(arguments) > 3:
        limit = int(arguments[3])
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with contextlib.suppress(OSError):
        # If memory runs out, the OS should kill this process, not the build.
        Path("/proc/self/oom_score_adj").write_text("500")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def watch() -> None:
        os.read(lifeline, 1)
        _orphaned()

    threading.Thread(target=watch, daemon=True).start()
    with contextlib.suppress(BrokenPipeError):
        if serve(Connection(requests), Connection(replies)):
            os._exit(0)  # The parent ends the rest of the group.
    _orphaned()


def _orphaned() -> None:
    """End with the parent, together with all child processes: a compiler may run for minutes or hang."""
    if os.getpgrp() == os.getpid():  # It leads its process group, as started by the pool.
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
