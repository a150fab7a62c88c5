"""Kernels that Inductor lowered but a compiler rejected: their graph is recompiled with ATen.

A compiler may reject a legal config: a newer Triton, ptxas, or any compiler if the config is untested. Inductor
compiles kernels after a graph's code is complete, too late to lower one GEMM again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from gemmdb.errors import MissError, TableError
from gemmdb.inductor.observe.journal import JOURNAL, Event
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.rejected import Rejected

log = logging.getLogger("gemmdb")
WITH_ATEN = Rejected("a kernel of its graph could not be compiled")
"""Why a GEMM in a recompiled graph runs ATen."""
MAX_REMEMBERED = 10_000
T = TypeVar("T")
_local = threading.local()
_rejected: dict[tuple[str, str], Rejected] = {}
"""Kernels that this process could not compile, by the canonical texts of problem and config."""


def rejection(config: Config, problem: Problem) -> Rejected | None:
    """Return why a config is not served for a problem: a graph with it failed to compile in this process."""
    return _rejected.get((problem.text, config.text)) if _rejected else None


def remember(problem: str, config: str, why: str) -> None:
    """Record that a graph with this kernel failed to compile. `problem`, `config`: canonical texts."""
    if len(_rejected) < MAX_REMEMBERED:
        _rejected[problem, config] = Rejected(f"a graph with this kernel could not be compiled ({why})")


def clear() -> None:
    """Forget all failed kernels."""
    _rejected.clear()


def again() -> bool:
    """Return whether this thread is recompiling a graph with ATen for every GEMM."""
    return bool(getattr(_local, "again", False))


def attempt(compile_graph: Callable[[], T], with_aten: Callable[[], T], frozen: Callable[[], bool] = bool) -> T:
    """Return the result of `compile_graph`. If it raises and the graph contained kernels from gemmdb, return the result
    of `with_aten`, during which `again()` is true. No later graph in this process gets these kernels for the same
    problems, except in `frozen` compiles: nothing is remembered of them or used in them, since what a graph gets must
    not depend on those before it.

    Forced kernels are not replaced: a measurement must report that they do not compile. If ATen does not compile
    either, the kernels are not the cause, and its exception is raised.
    """
    before = JOURNAL.entries()
    # Graphs in this process may differ from those in another.
    JOURNAL.provisional |= bool(_rejected) and not frozen()
    try:
        return compile_graph()
    except Exception as error:
        served = set() if _is_strict(error) else _served(JOURNAL.pending())
        if not served:
            raise
        text = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    JOURNAL.restore(before)
    JOURNAL.provisional = True  # Another process may have a working compiler or more memory.
    _local.again = True
    try:
        result = with_aten()
    finally:
        _local.again = False
    JOURNAL.error(said := f"compiling {', '.join(sorted({config for _, config in served}))}: {text}")
    log.warning("gemmdb: running ATen instead of kernels that failed to compile: %s", said)
    for problem, config in () if frozen() else served:
        remember(problem, config, text)
    return result


def _is_strict(error: BaseException | None) -> bool:
    """Return whether strict mode raised an error. Inductor wraps exceptions from a lowering."""
    while error is not None:
        if isinstance(error, MissError | TableError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _served(events: list[Event]) -> set[tuple[str, str]]:
    """Return the problems and configs of the GEMMs whose kernel came from a table, a model or live tuning; empty if any
    was forced."""
    kernels = [event for event in events if event.config not in ("", ATEN.text)]
    if any(event.rung == "forced" for event in kernels):
        return set()
    shared = [event for event in events if event.config and event.rung != "aten"]
    parts = {(event.problem, str(one["config"])) for event in shared for one in event.evidence.get("kernels", ())}
    return parts | {(event.problem, event.config) for event in kernels}
