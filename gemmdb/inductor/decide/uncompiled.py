"""Kernels that Inductor lowered and that a compiler then rejected: their graph is compiled again with ATen.

A config may be legal and still be rejected by a compiler: by a newer Triton, by ptxas, or because nobody has tried it.
Inductor compiles kernels when a graph's code is complete, too late to lower one GEMM anew.
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
"""Why ATen runs a GEMM of a graph that is compiled again."""
MAX_REMEMBERED = 10_000
T = TypeVar("T")
_local = threading.local()
_rejected: dict[tuple[str, str], Rejected] = {}
"""By canonical texts of a problem and a config: what this process could not compile."""


def rejection(config: Config, problem: Problem) -> Rejected | None:
    """Why a config is not served for a problem: a graph with it could not be compiled in this process."""
    return _rejected.get((problem.text, config.text)) if _rejected else None


def remember(problem: str, config: str, why: str) -> None:
    """Remember that a graph with this kernel could not be compiled. `problem`, `config`: canonical texts."""
    if len(_rejected) < MAX_REMEMBERED:
        _rejected[problem, config] = Rejected(f"a graph with this kernel could not be compiled ({why})")


def clear() -> None:
    """Forget what could not be compiled."""
    _rejected.clear()


def again() -> bool:
    """Whether this thread compiles a graph again, with ATen for every GEMM."""
    return bool(getattr(_local, "again", False))


def attempt(compile_graph: Callable[[], T], with_aten: Callable[[], T]) -> T:
    """What `compile_graph` returns. If it raises, and kernels of gemmdb were part of the graph: what `with_aten`
    returns, while `again()` is true. Then no further graph of the process gets these kernels for the same problems.

    Forced kernels are not replaced: who measures them wants to know that they do not compile. If ATen does not compile
    either, the kernels were not at fault, and what it raises is raised.
    """
    before = JOURNAL.entries()
    JOURNAL.provisional |= bool(_rejected)  # Graphs of this process may differ from those of another one.
    try:
        return compile_graph()
    except Exception as error:
        served = set() if _is_strict(error) else _served(JOURNAL.pending())
        if not served:
            raise
        text = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    JOURNAL.restore(before)
    JOURNAL.provisional = True  # Another process may have a compiler that works, or more memory.
    _local.again = True
    try:
        result = with_aten()
    finally:
        _local.again = False
    JOURNAL.error(said := f"compiling {', '.join(sorted({config for _, config in served}))}: {text}")
    log.warning("gemmdb: ATen is served instead of kernels that could not be compiled: %s", said)
    for problem, config in served:
        remember(problem, config, text)
    return result


def _is_strict(error: BaseException | None) -> bool:
    """Whether strict mode raised an error. Inductor wraps what a lowering raises."""
    while error is not None:
        if isinstance(error, MissError | TableError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _served(events: list[Event]) -> set[tuple[str, str]]:
    """The problems and configs of the GEMMs that got a kernel from a table, a model or live tuning; none if some were
    forced."""
    kernels = [event for event in events if event.config not in ("", ATEN.text)]
    if any(event.rung == "forced" for event in kernels):
        return set()
    shared = [event for event in events if event.config and event.rung != "aten"]
    parts = {(event.problem, str(one["config"])) for event in shared for one in event.evidence.get("kernels", ())}
    return parts | {(event.problem, event.config) for event in kernels}
