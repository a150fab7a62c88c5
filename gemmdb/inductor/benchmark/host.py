"""Single calls on the host clock, undisturbed by other processes where that is possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from resource import RUSAGE_SELF, getrusage
from time import perf_counter, perf_counter_ns
from typing import Any

import torch

from gemmdb.devices.cold_cache import flush_bytes
from gemmdb.devices.detect import last_level_cache_bytes

TRIES = 8
"""The most tries per sample until one is undisturbed; in a whole round, at most two per sample on average."""
SETTLE = 10
"""The most small parallel regions that are run until all threads have their cores."""
STALL_US = 1000.0
"""A call that takes three times as long as the quickest one, and this much longer, has waited for a core. Time slices
of the operating system are milliseconds; the noise of caches and clocks is far smaller."""

Work = Callable[[], Any]


@dataclass
class Sampler:
    """Times single calls. Before each call, `evict` clears the caches, then all threads get their cores, then `touch`
    brings back what is to be in the caches. `patience`: how many disturbed samples may still be taken again."""

    evict: Work
    settle: Work
    patience: int

    @classmethod
    def of(cls, state: str, patience: int) -> Sampler:
        """The sampler of a cache state, `cold` or `hot`. Cold: the last-level cache is flushed (`cold_cache`)."""
        if state != "cold":
            return cls(_nothing, _settler(), patience)
        buffer = torch.ones(flush_bytes(last_level_cache_bytes()) // 8, dtype=torch.int64)
        return cls(buffer.sum, _settler(), patience)

    def time(
        self, function: Callable[[list[Any]], Any], arguments: Sequence[Any], best_us: float, touch: Work | None = None
    ) -> float:
        """Microseconds of one call of `function` on a list of the arguments, undisturbed by other processes if a few
        tries suffice. `best_us`: the quickest call so far."""
        for _ in range(TRIES):
            self.evict()
            self.settle()
            if touch is not None:
                touch()
            given = list(arguments)
            switches = getrusage(RUSAGE_SELF).ru_nivcsw
            start = perf_counter_ns()
            result = function(given)
            elapsed = (perf_counter_ns() - start) / 1e3
            undisturbed = getrusage(RUSAGE_SELF).ru_nivcsw == switches
            del result
            if self.patience == 0 or (undisturbed and elapsed <= max(3 * best_us, best_us + STALL_US)):
                break
            self.patience -= 1
        return elapsed


def _nothing() -> None:
    pass


def _settler() -> Work:
    """A function that returns when all of torch's threads have a core. After a process switch, a thread may wait
    milliseconds for its core, and the next parallel region would be charged for it."""
    little = torch.zeros(65536)

    def region() -> float:
        start = perf_counter()
        little.neg_()
        return perf_counter() - start

    usual = sorted(region() for _ in range(20))[5]

    def settle() -> None:
        for _ in range(SETTLE):
            if region() < 3 * usual:
                return

    return settle
