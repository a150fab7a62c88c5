"""All time limits of a compile: how long live tuning, confirming and horizontal fusion may make it wait.

The three share one budget per process. This module imports no torch: the process of live tuning loads it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gemmdb.lookup.acceptance import SLOW_S
from gemmdb.settings import CONFIRM_S, EXPLICIT_LIVE_CALLS, EXPLICIT_LIVE_S, LIVE_S, UNLIMITED_LIVE_S, Policy

now = time.monotonic
"""The clock of all limits."""
PROCESS_S = 8.0
"""What a process of the default policy may spend. A program in many pieces must not wait for each of them, and what
the steps do past their limits must stay below ten seconds."""
GRAPHS = 3
"""A policy that allows more seconds to confirm a graph allows so many graphs of a process that much."""

BEGIN_SHARE = 0.5
"""The share of a graph's time for trials after which no further trial is begun."""
TRIAL_S = 0.2
"""What a trial takes at least: its two codes are generated and timed."""
CPU_TRIAL_S = 3.0
"""A trial on a CPU ends after this long, once it has the fewest rounds."""
STORE_S = 1.0
"""How long storing the rows of trials waits for other writers, while a compile waits for it."""

FIRST_S, FURTHER_S = 3.0, 1.0
"""The seconds that live tuning may take for the first GEMM of a process, whose measuring process still has to start,
and for each further one."""
RESTART_S = 30.0
"""Whether the measuring process should start is checked at most this often."""
IDLE_S = 30.0
"""The measuring process ends after this long without work."""
GRACE_S = 2.0
"""How long the measuring process may run past its time limit, to finish the GEMM that it measures, before it is
ended."""
REQUEST_S = 300.0
"""The limit of a request to the measuring process without one of its own."""
LOAD_SAMPLE_S, LOAD_VALID_S = 0.2, 10.0
"""How long the load of the machine is sampled before live tuning, and how long that sample is valid: all GEMMs of a
compile share it."""


class Budget:
    """What has been spent in this process, by all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spent_s = 0.0

    def left_s(self, policy: Policy) -> float:
        """The seconds that are left under a policy, 0 when none are."""
        return max(allowed_s(policy) - self._spent_s, 0.0)

    def spend(self, seconds: float) -> None:
        """Count what a step has taken."""
        with self._lock:
            self._spent_s += seconds

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Count the time that is spent inside."""
        start = now()
        try:
            yield
        finally:
            self.spend(now() - start)

    def clear(self) -> None:
        """Start over: nothing is spent."""
        with self._lock:
            self._spent_s = 0.0


BUDGET = Budget()


def allowed_s(policy: Policy) -> float:
    """The seconds that a process may spend under a policy: PROCESS_S, and what the policy allows beyond the defaults.
    `live` chosen by name waits for live tuning as long as it takes, and that does not count."""
    live_s = 0.0 if policy.live_s >= UNLIMITED_LIVE_S else max(policy.live_s - LIVE_S, 0.0)
    return PROCESS_S + live_s + GRAPHS * max(policy.confirm_s - CONFIRM_S, 0.0)


def exhausted(policy: Policy) -> str:
    """Why nothing more is timed, once nothing is left."""
    return f"{allowed_s(policy):g} s compile budget exhausted"


class TrialLimit:
    """How long the trials of one step may hold up a graph, from now on."""

    def __init__(self, policy: Policy) -> None:
        self._start, self.limit_s = now(), min(policy.confirm_s, BUDGET.left_s(policy))

    def spent_s(self) -> float:
        """The seconds since the start."""
        return now() - self._start

    def left_s(self) -> float:
        """The seconds that are left, negative when the limit is exceeded."""
        return self._start + self.limit_s - now()

    def may_begin(self) -> bool:
        """Whether another trial may be begun."""
        return self.spent_s() <= BEGIN_SHARE * self.limit_s


def patience_s(saved_us: float, policy: Policy) -> float:
    """How long a compile waits for the kernels of a trial: as long as what is expected to be saved repays within the
    policy's number of calls. `saved_us`: microseconds of one call of the graph. A policy that lets a graph wait long
    says how long itself."""
    if policy.confirm_s >= SLOW_S:
        return math.inf
    return saved_us * 1e-6 * calls(policy)


def repays(saved_us: float, policy: Policy) -> bool:
    """Whether a trial can repay what it takes. `saved_us`: as for `patience_s`."""
    return patience_s(saved_us, policy) >= TRIAL_S


def calls(policy: Policy) -> int:
    """The calls of a graph within which what it waited for must be repaid."""
    return policy.live_calls or EXPLICIT_LIVE_CALLS


def is_patient(policy: Policy) -> bool:
    """Whether a graph may wait for everything that live tuning can measure."""
    return policy.live_s >= UNLIMITED_LIVE_S


def tuning_s(policy: Policy, problems: int, ready: bool) -> float:
    """The most seconds that tuning this number of problems may hold up a graph, 0 when the process has none left.
    `ready`: the measuring process runs already. `live` chosen by name waits as long as it takes, up to the policy's
    limit."""
    limit_s = policy.live_s or EXPLICIT_LIVE_S
    if is_patient(policy):
        return limit_s
    # Most of what programs gain comes from confirming: what one graph may take for that is kept.
    left_s = BUDGET.left_s(policy) - (policy.confirm_s if policy.confirm else 0.0)
    return min(limit_s, left_s, first_s(ready) + FURTHER_S * (problems - 1)) if left_s >= FURTHER_S else 0.0


def first_s(ready: bool) -> float:
    """The seconds that tuning takes for the first GEMM. `ready`: as for `tuning_s`."""
    return FURTHER_S if ready else FIRST_S


def problem_s(policy: Policy) -> tuple[float, float]:
    """(the seconds of device time for a problem, the seconds that measuring waits for what is not compiled)."""
    return (1.0, math.inf) if is_patient(policy) else (0.3, 1.0)
