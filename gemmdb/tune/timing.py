"""The last step of `gemmdb tune`: the program runs without and with gemmdb alternately, and its graphs are timed."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from gemmdb.devices import load
from gemmdb.devices.load import Load
from gemmdb.errors import InputError
from gemmdb.report.workload import WorkloadReport
from gemmdb.tune import gained as gains
from gemmdb.tune import runs
from gemmdb.tune.gained import Gained
from gemmdb.tune.running import Say, run
from gemmdb.tune.state import State

TABLES = "GEMMDB_TABLES"
MORE_S = 120.0
"""Seconds in which a gain that is not certain yet is timed more often than runs.LEAST times."""
WHAT = {False: "without", True: "with"}


def pointless(report: WorkloadReport) -> str:
    """Return why timing a program would show nothing: ATen runs all its GEMMs on both sides. Empty if another kernel
    may run."""
    products = report.products
    # On a GPU a compile may also serve what it confirms, which a lookup outside of a compile does not.
    if any(one.served or (one.hit is not None and one.device.kind != "cpu") for one in products):
        return ""
    same = "ATen runs all GEMMs with and without gemmdb"
    if not any(one.hit for one in products):
        return f"no table answers, so {same}"
    disturbed = sum(one.outcome.disturbed for one in products)
    return f"{same}: for {disturbed} of {len(products)}, other programs disturbed all timings" if disturbed else same


def occupied(report: WorkloadReport, wait_s: float | None, measures: Callable[[Load], bool], say: Say) -> str:
    """Return why a program on a CPU is not timed: what others use, after waiting at most `wait_s` seconds until they
    end. `wait_s`: None not to mind; `measures`: whether to time it nevertheless. Empty if it is timed."""
    if wait_s is None or not _on_cpu(report):
        return ""
    busy = load.wait(wait_s, say=lambda busy: say(f"waiting for a quiet machine, at most {wait_s:.0f} s: {busy.text}"))
    return busy.text if busy is not None and busy.disturbs and not measures(busy) else ""


class Limit(NamedTuple):
    """The fewest and the most runs on each side, and the seconds that they take at most."""

    least: int
    most: int
    seconds: float


@dataclass
class Timing:
    """Times the program of a `state`, `repeats` times on each side; None until the gain is certain, within MORE_S
    seconds. `table`: the table that was built, None for the user table; `stdout`: the file descriptor that the program
    prints to, None for this process's own."""

    state: State
    repeats: int | None
    table: Path | None
    stdout: int | None
    say: Say
    _loads: list[Load] = field(default_factory=list)
    _took_s: dict[bool, float] = field(default_factory=dict)

    def gained(self, report: WorkloadReport) -> Gained:
        """Run the program and return its speedup. Raises InputError if it fails, and KeyboardInterrupt if a signal
        ends it although it finished normally during the recording."""
        limit, begun = self._limit(), monotonic()
        times: dict[bool, list[gains.Times]] = {False: [], True: []}
        found = gains.gained([], [])
        for number in range(limit.most):
            left_s = limit.seconds - (monotonic() - begun)
            if number >= limit.least and (found.is_certain or sum(self._took_s.values()) > left_s):
                break
            # Without, with, with, without: a machine that drifts affects both sides equally.
            for turn, with_gemmdb in enumerate((number % 2 == 1, number % 2 == 0), 2 * number + 1):
                self._say_run(turn, with_gemmdb, limit, limit.seconds - (monotonic() - begun))
                times[with_gemmdb].append(self._timed_alone(with_gemmdb))
            found = self._compared(times, report)
        return found

    def _timed_alone(self, with_gemmdb: bool) -> gains.Times:
        """Time a run, and what other programs use meanwhile."""
        begun, before = monotonic(), load.reading()
        found = self._timed(with_gemmdb)
        self._took_s[with_gemmdb] = monotonic() - begun
        if (busy := load.between(before, load.reading())) is not None:
            self._loads.append(busy)
        return found

    def _compared(self, times: Mapping[bool, Sequence[gains.Times]], report: WorkloadReport) -> Gained:
        most = max(self._loads, key=lambda one: one.others, default=None)
        disturbed = most.text if most is not None and most.disturbs and _on_cpu(report) else ""
        return gains.gained(
            times[False], times[True], most.others if most else 0.0, disturbed, looks=self.repeats is None
        )  # fmt: skip

    def _limit(self) -> Limit:
        """Return how often the program runs, and say how long that takes. The recording has filled the compiler's
        caches, so it may take less."""
        least, most = (runs.LEAST, runs.MOST) if self.repeats is None else (self.repeats, self.repeats)
        if self.state.stopped:  # A user has to end each run.
            return Limit(least, least, math.inf)
        if self.state.run_s < 1:
            return Limit(least, most, math.inf)
        busy = load.now()
        run_s = self.state.run_s * (busy.slowdown if busy else 1.0)
        seconds = min(2 * most * run_s, max(2 * least * run_s, MORE_S))
        number = f"{2 * least}" if least == most else f"{2 * least} to {2 * most}"
        self.say(f"4/4 timing: the program runs {number} more times, at most about {seconds:.0f} s")
        return Limit(least, most, seconds)

    def _say_run(self, turn: int, with_gemmdb: bool, limit: Limit, left_s: float) -> None:
        """Say which run begins, and how long the runs from now on take, by those that have ended; not where a user has
        to end them."""
        least, most, left = 2 * limit.least, 2 * limit.most, ""
        if self._took_s and not self.state.stopped:
            last_s = next(reversed(self._took_s.values()))
            seconds = sum(self._took_s.get(one % 4 in (2, 3), last_s) for one in range(turn, most + 1))
            seconds, about = (seconds, "about") if least == most else (min(seconds, left_s), "at most about")
            left = f", {about} {seconds:.0f} s left" if seconds >= 1 else ""
        of = f"{most}" if least == most else f"at most {most}"
        self.say(f"4/4 timing, run {turn} of {of}: the program runs {WHAT[with_gemmdb]} gemmdb{left}")

    def _timed(self, with_gemmdb: bool) -> gains.Times:
        """Return the times of the program's graphs in one run."""
        state, what = self.state, WHAT[with_gemmdb]
        with tempfile.TemporaryDirectory(prefix="gemmdb-times-") as folder:
            ended = run(state.command, Path(folder), what, environment(self.table), self.stdout)
            if ended.failures:
                raise InputError(f"the program cannot be timed: {ended.failures[0]}")
            if ended.stopped and not state.stopped:
                raise KeyboardInterrupt
            if ended.failed:
                raise InputError(f"{what} gemmdb the program ended with exit code {ended.exit_code}")
            return gains.read(Path(folder))


def environment(table: Path | None) -> dict[str, str]:
    """Return variables that make the program find the table, skip benchmarks while it is timed, and recompile: vLLM
    caches compiled graphs under keys that do not include gemmdb."""
    variables = {
        "VLLM_DISABLE_COMPILE_CACHE": os.environ.get("VLLM_DISABLE_COMPILE_CACHE", "1"), "GEMMDB_ON_MISS": "aten",
    }  # fmt: skip
    if table is not None:
        variables[TABLES] = os.pathsep.join(filter(None, (str(table.absolute()), os.environ.get(TABLES, ""))))
    return variables


def _on_cpu(report: WorkloadReport) -> bool:
    """Whether other programs on the CPU disturb the times."""
    return any(one.device.kind == "cpu" for one in report.products)
