"""Time limits of a compile: how long live tuning, confirmation, algorithm search and horizontal fusion may delay it.

They share one budget per process. This module does not import torch: the live-tuning process loads it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gemmdb.lookup.acceptance import SLOW_S
from gemmdb.settings import CONFIRM_S, EXPLICIT_LIVE_CALLS, EXPLICIT_LIVE_S, LIVE_S, UNLIMITED_LIVE_S, Policy

now = time.monotonic
"""The clock for all limits."""
PROCESS_S = 8.0
"""Budget per process under the default policy. A program with many graphs must not wait for each of them, and with
overruns the total must stay below ten seconds."""
GRAPHS = 3
"""Number of graphs per process that may use a policy's longer confirmation limit."""


@dataclass(frozen=True)
class Extent:
    """How much a search for the fastest algorithm of cuBLASLt for one GEMM times: at most `candidates` first, at most
    `nearby` that resemble the best of these, and ATen with the best ones for `final_s` seconds. `expected_s`: the
    seconds that all of it takes."""

    candidates: int
    nearby: int
    final_s: float
    expected_s: float


EXTENTS = (Extent(10, 8, 0.06, 0.15), Extent(10, 0, 0.03, 0.08))
"""The extents of a search; the first that can pay off is chosen. Their seconds are means over GEMMs whose kernels are
loaded, on a slow host (benchmarks/results/h200/search.json, search-short.json), the first with 24 + 24 candidates.
In its 27 searches the best estimate gains 9.7% over ATen in the mean, 9.7% with 24 + 8, 9.1% without those nearby, 8.7%
with the first 8 or 10 alone; 10 + 8 lies between, and was not measured. Each candidate takes about 3 ms to load in a
new process."""
POSSIBLE_GAIN = 0.2
"""Share of a GEMM's time that the fastest algorithm may save: one bf16 GEMM in ten saves 13 to 20%, the average 5%
(457 GEMMs on an H100). Nobody knows which before they are timed."""

BEGIN_SHARE = 0.5
"""Fraction of a graph's trial time after which no new trial starts."""
TRIAL_S = 0.2
"""Minimum seconds per trial, to generate and time both versions."""
CPU_TRIAL_S = 3.0
"""A trial on a CPU ends after this many seconds, once it has the minimum number of rounds."""
STORE_S = 1.0
"""How many seconds a compile may wait for other writers to store the rows of trials."""

FIRST_S, FURTHER_S = 3.0, 1.0
"""Seconds that live tuning may take for the first GEMM of a process, including starting the measuring process, and for
each further GEMM."""
CPU_FIRST_S, CPU_FURTHER_S = 20.0, 10.0
"""About how many seconds that takes on an idle CPU, as a message says it: candidates are compiled by a C++ compiler."""
RESTART_S = 30.0
"""Minimum seconds between checks whether to start the measuring process."""
IDLE_S = 30.0
"""Idle seconds after which the measuring process ends."""
GRACE_S = 2.0
"""Seconds that the measuring process may run past its limit to finish the current GEMM before it is ended."""
REQUEST_S = 300.0
"""Default limit in seconds for a request to the measuring process."""
LOAD_SAMPLE_S, LOAD_VALID_S = 0.2, 10.0
"""Seconds that the machine's load is sampled before live tuning, and seconds that a sample stays valid: all GEMMs of a
compile share it."""


class Budget:
    """Time spent by all threads of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spent_s = 0.0

    def left_s(self, policy: Policy) -> float:
        """Return the seconds left under a policy, at least 0."""
        return max(allowed_s(policy) - self._spent_s, 0.0)

    def spend(self, seconds: float) -> None:
        """Add a step's time to the total."""
        with self._lock:
            self._spent_s += seconds

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Add the time spent inside the block."""
        start = now()
        try:
            yield
        finally:
            self.spend(now() - start)

    def clear(self) -> None:
        """Reset the time spent to zero."""
        with self._lock:
            self._spent_s = 0.0


BUDGET = Budget()


def allowed_s(policy: Policy) -> float:
    """Return the budget in seconds per process: PROCESS_S plus what the policy allows beyond the defaults. Explicit
    `live` waits for live tuning as long as it takes, which does not count."""
    live_s = 0.0 if policy.live_s >= UNLIMITED_LIVE_S else max(policy.live_s - LIVE_S, 0.0)
    return PROCESS_S + live_s + GRAPHS * max(policy.confirm_s - CONFIRM_S, 0.0)


def exhausted(policy: Policy) -> str:
    """Return the reason why nothing more is timed once the budget is spent."""
    return f"{allowed_s(policy):g} s compile budget exhausted"


class TrialLimit:
    """Limit on how long the trials of one step may delay a graph, starting now."""

    def __init__(self, policy: Policy) -> None:
        self._policy, self._reserved_s = policy, 0.0
        self._start, self.limit_s = now(), min(policy.confirm_s, BUDGET.left_s(policy))

    def spent_s(self) -> float:
        """Return the seconds since the start."""
        return now() - self._start

    def left_s(self) -> float:
        """Return the seconds left, negative if the limit is exceeded."""
        return self._start + self.limit_s - now()

    def postpone(self, seconds: float) -> None:
        """Move the end by the time that another step took."""
        self._start += seconds

    def reserve(self, trials: int) -> None:
        """Allow seconds to time more trials, as far as the budget has them, but no more to wait for their kernels."""
        before = self.limit_s
        self.limit_s = min(before + trials * TRIAL_S, max(before, self.spent_s() + BUDGET.left_s(self._policy)))
        self._reserved_s += self.limit_s - before

    def wait_s(self) -> float:
        """Return the seconds left to wait for kernels, negative if there are none."""
        return self.left_s() - self._reserved_s

    def may_begin(self) -> bool:
        """Return whether another trial may start."""
        return self.spent_s() <= BEGIN_SHARE * self.limit_s


def patience_s(saved_us: float, policy: Policy) -> float:
    """Return how many seconds a compile waits for the kernels of a trial: the expected saving over the policy's number
    of calls. `saved_us`: microseconds saved per call of the graph. A policy with a long wait sets its own limit."""
    if policy.confirm_s >= SLOW_S:
        return math.inf
    return saved_us * 1e-6 * calls(policy)


def repays(saved_us: float, policy: Policy) -> bool:
    """Return whether a trial can pay off. `saved_us`: as for `patience_s`."""
    return patience_s(saved_us, policy) >= TRIAL_S


def search_extent(us: float, policy: Policy) -> Extent | None:
    """Return the largest search for an algorithm that can pay off, None if none can. `us`: microseconds that the GEMM
    takes per call of the graph."""
    patience = patience_s(POSSIBLE_GAIN * us, policy)
    return next((one for one in EXTENTS if one.expected_s <= patience), None)


def calls(policy: Policy) -> int:
    """Return the number of graph calls within which the compile-time wait must pay off."""
    return policy.live_calls or EXPLICIT_LIVE_CALLS


def is_patient(policy: Policy) -> bool:
    """Return whether a graph may wait for everything that live tuning can measure."""
    return policy.live_s >= UNLIMITED_LIVE_S


def tuning_s(policy: Policy, problems: int, ready: bool) -> float:
    """Return the maximum seconds that tuning this many problems may delay a graph, 0 if the budget is spent. `ready`:
    the measuring process is already running. Explicit `live` waits as long as it takes, up to the policy's limit."""
    limit_s = policy.live_s or EXPLICIT_LIVE_S
    if is_patient(policy):
        return limit_s
    # Most of a program's speedup comes from confirmation, so one graph's confirmation time is reserved.
    left_s = BUDGET.left_s(policy) - (policy.confirm_s if policy.confirm else 0.0)
    return min(limit_s, left_s, first_s(ready) + FURTHER_S * (problems - 1)) if left_s >= FURTHER_S else 0.0


def first_s(ready: bool) -> float:
    """Return the seconds that tuning takes for the first GEMM. `ready`: as for `tuning_s`."""
    return FURTHER_S if ready else FIRST_S


def problem_s(policy: Policy) -> tuple[float, float]:
    """Return (seconds of device time per problem, seconds that measuring waits for candidates to compile)."""
    return (1.0, math.inf) if is_patient(policy) else (0.3, 1.0)
