"""Detect whether this machine is quiet enough for timing: how many cores other processes keep busy.

Reads /proc only. On systems without it the load is unknown (None), and only the spread of the times reveals it.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gemmdb.devices import detect

PROC = Path("/proc")
QUIET_CORES, QUIET_SHARE = 0.25, 0.05
"""A machine counts as quiet while other processes keep at most this many cores busy, or this share of the timed
threads: background services of an idle machine take a few percent of one core."""
MIN_S = 0.1
"""Shortest interval for a load reading, in seconds: Linux counts in hundredths of a second."""
MAX_PROGRAMS, MIN_CORES = 3, 0.05
"""Most programs that are named, and the least share of a core that each uses."""
SAMPLE_S = 0.5
"""Sampling interval of `now`, in seconds."""
QUEUE_SAMPLES, QUEUE_STEP_S = 10, 0.05
"""How often `queued` looks at what runs, and the seconds between two looks."""
_TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters at one moment, in seconds: `at`: wall clock; `busy_s`: CPU time of all cores that this process may use;
    `own_s`: CPU time of this process and all its descendants; `others`: name and CPU time of all other processes
    without that of their children, by process ID."""

    at: float
    busy_s: float
    own_s: float
    others: Mapping[int, tuple[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Load:
    """Load from other processes over an interval. `others`: average number of cores they kept busy; `spare`: number of
    cores that the timed threads leave free; `threads`: number of timed threads; `programs`: names of the programs that
    use most, with their cores."""

    others: float
    spare: int = 0
    threads: int = 1
    programs: tuple[tuple[str, float], ...] = ()

    @property
    def disturbs(self) -> bool:
        """Whether the load may have disturbed times measured during the interval."""
        return self.others > max(QUIET_CORES, QUIET_SHARE * self.threads) + self.spare

    @property
    def slowdown(self) -> float:
        """How many times as long as on a quiet machine a program takes."""
        return 1 + self.others / detect.cores() if self.disturbs else 1.0

    @property
    def text(self) -> str:
        """In words."""
        named = ", ".join(f"{name} {cores:.1f}" for name, cores in self.programs)
        return f"other programs keep {self.others:.1f} cores busy{f' ({named})' if named else ''}"


def reading(root: int | None = None) -> Reading | None:
    """Return the counters now, or None if Linux does not report them. `root`: root process of our own process tree;
    None means this process."""
    try:
        own_s, others = _split(root or os.getpid())
        return Reading(time.monotonic(), _busy_s(), own_s, others)
    except (OSError, ValueError, IndexError):
        return None


def between(before: Reading | None, after: Reading | None, threads: int | None = None) -> Load | None:
    """Return the load between two readings, or None if it is unknown or the interval was too short. `threads`: number
    of timed threads; None means one per core."""
    if before is None or after is None or after.at - before.at < MIN_S:
        return None
    taken = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
    timed = threads or detect.cores()
    seconds = after.at - before.at
    return Load(max(taken, 0.0) / seconds, max(detect.cores() - timed, 0), timed, _programs(before, after, seconds))


def _programs(before: Reading, after: Reading, seconds: float) -> tuple[tuple[str, float], ...]:
    """Return the names of the programs that used most, with their cores; several processes of a name count as one."""
    cores: defaultdict[str, float] = defaultdict(float)
    for process, (name, total_s) in after.others.items():
        cores[name] += (total_s - before.others.get(process, ("", 0.0))[1]) / seconds
    most = sorted(cores.items(), key=lambda item: -item[1])
    return tuple((name, used) for name, used in most[:MAX_PROGRAMS] if used >= MIN_CORES)


def now(seconds: float = SAMPLE_S, threads: int | None = None) -> Load | None:
    """Return the load over the next `seconds`."""
    before = reading()
    if before is None:
        return None
    time.sleep(seconds)
    return between(before, reading(), threads)


def queued() -> float:
    """Return how many other programs run or wait per core of the host; 0 if unknown. The mean of now and the last
    minute: programs that have just started count half in it, and so do those that have just ended."""
    known = [number for number in (_running(), _loaded()) if number is not None]
    return sum(known) / len(known) / (os.cpu_count() or 1) if known else 0.0


def _running() -> float | None:
    """Return how many other programs run or wait for a core now, sampled over half a second."""
    try:
        seen = []
        for _ in range(QUEUE_SAMPLES):
            stat = (PROC / "stat").read_text()
            seen.append(int(stat.partition("procs_running ")[2].split()[0]) - 1)  # Without this one.
            time.sleep(QUEUE_STEP_S)
    except (OSError, ValueError, IndexError):
        return None
    return max(sum(seen) / len(seen), 0.0)


def _loaded() -> float | None:
    """Return how many programs ran or waited for a core in the last minute."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def wait(
    limit_s: float,
    threads: int | None = None,
    say: Callable[[Load], None] | None = None,
    given_up: Callable[[], bool] = lambda: False,
) -> Load | None:
    """Wait at most `limit_s` seconds until the machine is quiet, or until `given_up` returns true, and return the last
    load. If it has to wait, calls `say` once with the load."""
    until = time.monotonic() + limit_s
    found = now(threads=threads)
    if found is not None and found.disturbs and say is not None and time.monotonic() < until:
        say(found)
    while found is not None and found.disturbs and time.monotonic() < until and not given_up():
        found = now(threads=threads)
    return found


def _busy_s() -> float:
    """Return the CPU seconds that the usable cores have spent in any mode, including steal time."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    ticks = 0
    for line in (PROC / "stat").read_text().splitlines():
        name, *numbers = line.split()
        if name.startswith("cpu") and name != "cpu" and (not cores or int(name[3:]) in cores):
            user, nice, system, _idle, _waiting, irq, softirq, steal = map(int, numbers[:8])
            ticks += user + nice + system + irq + softirq + steal
    return ticks / _TICK


def _split(root: int) -> tuple[float, dict[int, tuple[str, float]]]:
    """Return the CPU seconds of a process and all its descendants, including those that have exited, and the names and
    CPU seconds of all other processes, by process ID."""
    names: dict[int, str] = {}
    children: dict[int, list[int]] = defaultdict(list)
    alone: dict[int, int] = {}
    ticks: dict[int, int] = {}  # With the children that have exited, whose time is added all at once.
    for folder in PROC.iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            # The program name, in parentheses, may contain spaces.
            head, _, tail = (folder / "stat").read_text().rpartition(")")
        except OSError:
            continue  # It has just exited.
        fields = tail.split()
        names[int(folder.name)] = head.partition("(")[2]
        alone[int(folder.name)] = sum(map(int, fields[11:13]))
        ticks[int(folder.name)] = alone[int(folder.name)] + sum(map(int, fields[13:15]))
        children[int(fields[1])].append(int(folder.name))
    total, todo = 0, [root]
    while todo:
        one = todo.pop()
        total += ticks.pop(one, 0)
        todo += children[one]
    return total / _TICK, {process: (names[process], alone[process] / _TICK) for process in ticks}
