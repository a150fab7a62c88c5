"""The processes of a build, found by a mark in their environment: also those whose parent is gone."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

MARK = "GEMMDB_STRESS_MARK"
"""The environment variable that a build and all its descendants have."""
AGENTS = (b"ray::DashboardAgent", b"ray::RuntimeEnvAgent")
"""Ray's own processes on a node, which ends with them."""


@dataclass(frozen=True)
class Victim:
    """A process: its id, and what it is: a driver, a server, a worker, a compiler, Ray's part of a node, an idle worker
    of Ray, or another one."""

    pid: int
    kind: str


def running(mark: str) -> list[Victim]:
    """The processes whose environment has this mark. One that has ended and waits to be reaped is none."""
    return sorted(_running(mark), key=lambda victim: victim.pid)


def _running(mark: str) -> Iterator[Victim]:
    wanted = f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if words[0]:  # A process without an image has ended.
                yield Victim(int(folder.name), _kind(folder, words))


def _kind(folder: Path, words: list[bytes]) -> str:
    if words[0].startswith(AGENTS):
        return "other"
    if words[0].startswith(b"ray::"):
        return "idle" if words[0].startswith(b"ray::IDLE") else "worker"
    if b"/ray/" in words[0]:
        return "node" if words[0].endswith(b"/raylet") else "other"
    if Path(os.fsdecode(words[0])).name.startswith("python"):
        boot = b" ".join(words)
        if b"fork_server" in boot:
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            return "worker" if b"fork_server" in Path(f"/proc/{parent}/cmdline").read_bytes() else "server"
        return "worker" if b"processes.child" in boot else "driver" if b"benchmarks.stress" in boot else "other"
    return "compiler"


def kill(victim: Victim) -> bool:
    """Kill a process at once. False if it ended before."""
    try:
        os.kill(victim.pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def gone_after(mark: str, limit_s: float, found: Callable[[str], list[Victim]] = running) -> float | None:
    """Seconds until no process that is `found` with the mark runs; None if one still does after `limit_s`."""
    start = time.monotonic()
    while found(mark):
        if time.monotonic() - start > limit_s:
            return None
        time.sleep(0.05)
    return time.monotonic() - start
