"""The seconds by which live tuning, confirming and horizontal fusion together may delay the compiles of a process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gemmdb.settings import CONFIRM_S, LIVE_S, PATIENT_S, Policy

now = time.monotonic
PROCESS_S = 8.0
"""What a process of the default policy may spend. A program in many pieces must not wait for each of them, and what
the steps do past their limits must stay below ten seconds."""
GRAPHS = 3
"""A policy that allows more seconds to confirm a graph allows so many graphs of a process that much."""


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


def allowed_s(policy: Policy) -> float:
    """The seconds that a process may spend under a policy: PROCESS_S, and what the policy allows beyond the defaults.
    Whoever asks for `live` by name waits for live tuning as long as it takes, and that does not count."""
    live_s = 0.0 if policy.live_s >= PATIENT_S else max(policy.live_s - LIVE_S, 0.0)
    return PROCESS_S + live_s + GRAPHS * max(policy.confirm_s - CONFIRM_S, 0.0)


def over(policy: Policy) -> str:
    """Why nothing more is timed, once nothing is left."""
    return f"{allowed_s(policy):g} s were over in this process"


BUDGET = Budget()
