"""Whether this machine is quiet enough to time on: how many of its cores other processes keep busy.

Read from /proc alone. Elsewhere the load is unknown (None), and only the spread of the times themselves tells of it.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gemmdb.devices import detect

PROC = Path("/proc")
QUIET_CORES, QUIET_SHARE = 0.25, 0.05
"""Other processes may keep this many cores busy on a quiet machine, or this share of the threads that are timed: the
services of an idle machine take a few percent of one core."""
MIN_S = 0.1
"""The shortest time that a load is taken over, in seconds: Linux counts in hundredths of a second."""
SAMPLE_S = 0.5
"""How long `now` looks, in seconds."""
_TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass(frozen=True, slots=True)
class Reading:
    """The clocks at one moment, in seconds: `at`, of the host; `busy_s`, of all cores that this process may use;
    `own_s`, of this process and all that it started."""

    at: float
    busy_s: float
    own_s: float


@dataclass(frozen=True, slots=True)
class Load:
    """What other processes took for a while. `others`: how many cores they kept busy, on average; `spare`: how many
    cores the threads that are timed leave to them; `threads`: how many threads are timed."""

    others: float
    spare: int = 0
    threads: int = 1

    @property
    def disturbs(self) -> bool:
        """Whether times that were taken meanwhile may be those of a busy machine."""
        return self.others > max(QUIET_CORES, QUIET_SHARE * self.threads) + self.spare

    @property
    def text(self) -> str:
        """In words."""
        return f"other programs keep {self.others:.1f} cores busy"


def reading(root: int | None = None) -> Reading | None:
    """The clocks now; None where Linux does not tell. `root`: the process whose tree is one's own, None for this."""
    try:
        return Reading(time.monotonic(), _busy_s(), _tree_s(root or os.getpid()))
    except (OSError, ValueError, IndexError):
        return None


def between(before: Reading | None, after: Reading | None, threads: int | None = None) -> Load | None:
    """The load between two readings; None if it is unknown, or the time was too short. `threads`: how many are timed;
    None for as many as there are cores."""
    if before is None or after is None or after.at - before.at < MIN_S:
        return None
    taken = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
    timed = threads or detect.cores()
    return Load(max(taken, 0.0) / (after.at - before.at), max(detect.cores() - timed, 0), timed)


def now(seconds: float = SAMPLE_S, threads: int | None = None) -> Load | None:
    """The load over the next `seconds`."""
    before = reading()
    if before is None:
        return None
    time.sleep(seconds)
    return between(before, reading(), threads)


def wait(limit_s: float, threads: int | None = None, say: Callable[[Load], None] | None = None) -> Load | None:
    """Wait until the machine is quiet, `limit_s` seconds at most; the load of the last moments. `say` is told the load
    at the start of a wait."""
    until = time.monotonic() + limit_s
    found = now(threads=threads)
    if found is not None and found.disturbs and say is not None and time.monotonic() < until:
        say(found)
    while found is not None and found.disturbs and time.monotonic() < until:
        found = now(threads=threads)
    return found


def _busy_s() -> float:
    """Seconds that the usable cores have worked, in any mode, or for other guests of the same host."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    ticks = 0
    for line in (PROC / "stat").read_text().splitlines():
        name, *numbers = line.split()
        if name.startswith("cpu") and name != "cpu" and (not cores or int(name[3:]) in cores):
            user, nice, system, _idle, _waiting, irq, softirq, steal = map(int, numbers[:8])
            ticks += user + nice + system + irq + softirq + steal
    return ticks / _TICK


def _tree_s(root: int) -> float:
    """Seconds of processor of a process and of all below it, also of those that have ended."""
    children: dict[int, list[int]] = defaultdict(list)
    ticks: dict[int, int] = {}
    for folder in PROC.iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            # The name of the program, in parentheses, may hold spaces.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It has just ended.
        ticks[int(folder.name)] = sum(map(int, fields[11:15]))
        children[int(fields[1])].append(int(folder.name))
    total, todo = 0, [root]
    while todo:
        one = todo.pop()
        total += ticks.get(one, 0)
        todo += children[one]
    return total / _TICK
