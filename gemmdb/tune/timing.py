"""The last step of `gemmdb tune`: the program runs without and with gemmdb alternately, and its graphs are timed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from gemmdb.devices import load
from gemmdb.devices.load import Load
from gemmdb.errors import InputError
from gemmdb.report.workload import WorkloadReport
from gemmdb.tune import gained as gains
from gemmdb.tune.gained import Gained
from gemmdb.tune.running import STOPPED_CODES, Say, run
from gemmdb.tune.state import State

TABLES = "GEMMDB_TABLES"
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


@dataclass
class Timing:
    """Times the program of a `state`, `repeats` times on each side. `table`: the table that was built, None for the
    user table; `stdout`: the file descriptor that the program prints to, None for this process's own."""

    state: State
    repeats: int
    table: Path | None
    stdout: int | None
    say: Say
    _loads: list[Load] = field(default_factory=list)
    _took_s: dict[bool, float] = field(default_factory=dict)

    def gained(self, report: WorkloadReport) -> Gained:
        """Run the program and return its speedup. Raises InputError if it fails, and KeyboardInterrupt if a signal
        ends it although it finished normally during the recording."""
        # Without, with, with, without: a machine that drifts affects both sides equally.
        turns = [bool(side) ^ bool(turn % 2) for turn in range(self.repeats) for side in range(2)]
        self._announce(len(turns))
        runs: dict[bool, list[gains.Times]] = {False: [], True: []}
        for number, with_gemmdb in enumerate(turns):
            left = self._left(turns[number:]) if number else ""
            self.say(f"4/4 timing, run {number + 1} of {len(turns)}: the program runs {WHAT[with_gemmdb]} gemmdb{left}")
            begun, before = monotonic(), load.reading()
            runs[with_gemmdb].append(self._timed(with_gemmdb))
            self._took_s[with_gemmdb] = monotonic() - begun
            if (busy := load.between(before, load.reading())) is not None:
                self._loads.append(busy)
        most = max(self._loads, key=lambda one: one.others, default=None)
        disturbed = most.text if most is not None and most.disturbs and _on_cpu(report) else ""
        return gains.gained(runs[False], runs[True], most.others if most else 0.0, disturbed)

    def _announce(self, number: int) -> None:
        """Say how long the runs take. The recording has filled the compiler's caches, so they may take less."""
        if self.state.run_s < 1 or self.state.stopped:
            return
        busy = load.now()
        seconds = number * self.state.run_s * (busy.slowdown if busy else 1.0)
        self.say(f"4/4 timing: the program runs {number} more times, at most about {seconds:.0f} s")

    def _left(self, turns: Sequence[bool]) -> str:
        """Return how long the runs from now on take, by those that have ended; empty where a user has to end them."""
        last_s = next(reversed(self._took_s.values()))
        seconds = sum(self._took_s.get(turn, last_s) for turn in turns)
        return f", about {seconds:.0f} s left" if seconds >= 1 and not self.state.stopped else ""

    def _timed(self, with_gemmdb: bool) -> gains.Times:
        """Return the times of the program's graphs in one run."""
        state, what = self.state, WHAT[with_gemmdb]
        with tempfile.TemporaryDirectory(prefix="gemmdb-times-") as folder:
            ended = run(state.command, Path(folder), what, environment(self.table), self.stdout)
            if ended.failures:
                raise InputError(f"the program cannot be timed: {ended.failures[0]}")
            if ended.exit_code in STOPPED_CODES[1:] and not state.stopped:
                raise KeyboardInterrupt
            if ended.exit_code not in STOPPED_CODES:
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
