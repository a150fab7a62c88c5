"""The code of the process that runs candidates: `main([REQUESTS, REPLIES, LIFELINE, MEMORY_BYTES])`.

The first three are file descriptors. The process reads pickled tasks from one pipe and answers each on another. It
exits when its parent ends in any way: the lifeline is a pipe that only the parent holds open.
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
    "killed signal terminated program",  # GCC, of a part of it that was killed.
    "died due to signal 9",  # nvcc likewise.
    "no space left on device", "disk quota exceeded",  # A compiler's, which writes files.
    "file too short",  # The loader's, of a library that a linker which was killed left unfinished.
)  # fmt: skip


@dataclass(frozen=True)
class Task:
    """A call to make: an importable function and its arguments. All of them pickle, also for another host."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Reply:
    """The answer to a task: its value, or the status and one line about the exception that it raised."""

    value: Any = None
    status: Status = Status.OK
    detail: str = ""


@dataclass(frozen=True)
class RemoteModule:
    """A module that only the process that makes the calls imports, so that whoever lets others do the work need not
    wait for torch: its attributes are its functions, as a Task takes them."""

    module: str

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return functools.partial(_call, self.module, name)


def _call(module: str, name: str, *arguments: Any) -> Any:
    return getattr(importlib.import_module(module), name)(*arguments)


def answer(task: Task) -> Reply:
    """Make the call. An exception becomes a Reply. Exhausted memory has its own status. So has a compiler or another
    program that was killed: only the kernel does that, for memory."""
    try:
        return Reply(task.function(*task.arguments))
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        exhausted = out_of_memory(text) or _killed(error)
        return Reply(status=Status.OOM if exhausted else Status.ERROR, detail=one_line(text))


def out_of_memory(text: str) -> bool:
    """Whether the text of an exception says that the memory of the host or of a GPU was exhausted, or the disk. The
    libraries that allocate memory share no exception for it."""
    found = text.lower()
    return any(phrase in found for phrase in _EXHAUSTED)


def _killed(error: BaseException | None) -> bool:
    """Whether it comes from a program that was killed. Inductor's message does not say so."""
    while error is not None:
        if getattr(error, "returncode", 0) == -signal.SIGKILL:
            return True
        error = error.__cause__ or error.__context__
    return False


def serve(requests: Connection, replies: Connection) -> bool:
    """Answer tasks until the parent sends None (true) or goes away."""
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
        # When memory runs out, the kernel should end this process and not the build.
        Path("/proc/self/oom_score_adj").write_text("500")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def watch() -> None:
        os.read(lifeline, 1)
        _orphaned()

    threading.Thread(target=watch, daemon=True).start()
    with contextlib.suppress(BrokenPipeError):
        if serve(Connection(requests), Connection(replies)):
            os._exit(0)  # The parent ends what is left of the group.
    _orphaned()


def _orphaned() -> None:
    """End with the parent, and take along what this process started: a compiler may run for minutes, or hang."""
    if os.getpgrp() == os.getpid():  # It leads its group, as the pool starts it.
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
