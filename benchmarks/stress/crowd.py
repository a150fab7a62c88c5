"""Many processes that do the same thing at once, and what each of them tells."""

from __future__ import annotations

import multiprocessing
import statistics
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

_context = multiprocessing.get_context("fork")
PATIENCE_S = 1800.0
"""How long to wait for the next one."""

Act = Callable[[int], list[float]]
"""What each process does, given its number; returns the seconds of each step."""


def at_once(count: int, act: Act) -> tuple[float, list[list[float]], list[str]]:
    """(seconds until the last one is done, the seconds of each one's steps, what they raised). All begin together."""
    barrier, queue = _context.Barrier(count + 1), _context.Queue()
    processes = [_context.Process(target=_run, args=(number, act, barrier, queue)) for number in range(count)]
    for process in processes:
        process.start()
    barrier.wait(PATIENCE_S)
    start = time.monotonic()
    told = [queue.get(timeout=PATIENCE_S) for _ in processes]
    seconds = time.monotonic() - start
    for process in processes:
        process.join()
    return seconds, [one for one in told if isinstance(one, list)], [one for one in told if isinstance(one, str)]


def _run(number: int, act: Act, barrier: Any, queue: Any) -> None:
    barrier.wait(PATIENCE_S)
    try:
        queue.put(act(number))
    except BaseException:
        queue.put(traceback.format_exc(limit=-3))


def timed(step: Callable[[], object]) -> float:
    """How many seconds the step takes."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def quantiles(seconds: Sequence[float], unit: float) -> dict[str, float]:
    """Median, 99th percentile and maximum in a unit of so many seconds."""
    cuts = statistics.quantiles(seconds, n=100)
    found = {"median": cuts[49], "p99": cuts[98], "max": max(seconds)}
    return {name: round(value / unit, 2) for name, value in found.items()}
