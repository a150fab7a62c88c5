"""The processes that measure programs: where each runs, what it is told, what it returns, and why it did not."""

from __future__ import annotations

import argparse
import compileall
import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gemmdb
from benchmarks.command import command
from benchmarks.programs import failures, ways
from benchmarks.programs.program import Program
from gemmdb.errors import InputError

INNERMOST = 8
"""How many functions a process that takes too long is said to be in."""
PATIENCE_S = 5.0
"""How long it may take to say so."""


@dataclass(frozen=True)
class Place:
    """Where a program is measured: the device, the GPU's name for CUDA_VISIBLE_DEVICES, the processors that are its own
    (none: all are shared), and the lock of the GPU."""

    device: str
    gpu: str
    cpus: tuple[int, ...] = ()

    @property
    def lock(self) -> Path:
        """The lock, which all measurements on this machine share."""
        return Path(tempfile.gettempdir()) / f"gemmdb-programs-{self.gpu or self.device}.lock"


def places(device: str, gpus: Sequence[str], jobs: int, cpus: int) -> list[Place]:
    """The places for `jobs` programs on each GPU. `cpus`: how many processors each has for itself; 0 shares all. Raises
    InputError if there are not enough."""
    found = [gpu for _ in range(jobs) for gpu in gpus]
    free = sorted(os.sched_getaffinity(0)) if cpus else []
    if len(free) < cpus * len(found):
        raise InputError(f"--cpus: {len(found)} programs at once need {cpus * len(found)} processors, not {len(free)}")
    return [Place(device, gpu, tuple(free[i * cpus : (i + 1) * cpus])) for i, gpu in enumerate(found)]


def pin(cpus: str) -> None:
    """Keep this process, and those that it starts, on these processors. torch counts them when it is imported."""
    os.sched_setaffinity(0, set(map(int, cpus.split(","))))


def compile_sources() -> None:
    """Write what Python makes of gemmdb's sources, as installing a package does: the first process would pay for it."""
    root = Path(gemmdb.__file__).parent
    for folder in (root, root / "generators"):  # The second is a link in a checkout.
        compileall.compile_dir(folder, quiet=2)


def in_process(
    task: str, program: Program, names: list[str], place: Place, folder: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """What `worker.TASK` returns in a process of its own; the reason as `failure` if it ends otherwise."""
    where = {"device": place.device, "folder": str(folder), "lock": str(place.lock)}
    how = {"size": options.size, "seconds": options.timing, "blame": options.blame, "crowded": options.crowded,
           "study": options.study, "source": options.source}  # fmt: skip
    job = {"program": program.name, "ways": names, **where, **how}
    reply, log = folder / "reply.json", folder / f"{task}-{names[0]}.log"
    reply.unlink(missing_ok=True)
    pinned = ",".join(map(str, place.cpus)) or None
    call = command("benchmarks.programs", "measure", "--child", task, json.dumps(job), pinned=pinned)
    compilers = len(place.cpus) or max((os.cpu_count() or 1) // (options.jobs * len(options.gpus.split(","))), 2)
    environ = ways.base_environment(os.environ, place.gpu, compilers)
    with log.open("wb") as output:
        child = subprocess.Popen(call, env=environ, stdout=output, stderr=output, start_new_session=True)
        try:
            code = child.wait(options.timeout)
        except subprocess.TimeoutExpired:
            return {"failure": f"{task}: no answer within {options.timeout:.0f} s; it was in {doing(child, log)}"}
        finally:
            _end(child)
    if code == 0 and reply.exists():
        found: dict[str, Any] = json.loads(reply.read_text())
        return found
    return {"failure": f"{task}: exit {code}: {failures.ended(log.read_text(errors='replace'))}"}


def doing(child: subprocess.Popen[bytes], log: Path) -> str:
    """The innermost functions of the main thread of a process, which writes them to its log when it is told to. That
    may take a while: a driver that looks for memory does not let it."""
    child.send_signal(signal.SIGUSR1)
    until, found = time.monotonic() + PATIENCE_S, list[tuple[str, str, str]]()
    while not found and time.monotonic() < until:
        time.sleep(0.5)
        _, _, last = log.read_text(errors="replace").rpartition("Current thread")
        found = re.findall(r'File ".*?([^/"]+)", line (\d+) in (\S+)', last)
    return ", ".join(f"{name} ({file}:{number})" for file, number, name in found[:INNERMOST]) or "no Python code"


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started, the compilers of Inductor too."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
