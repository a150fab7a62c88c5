"""Kernels that Inductor lowered and that could not be compiled then: their graph is compiled again with ATen.

A config may be legal and still be refused by the compiler: by a newer Triton, by ptxas, or because a table asks for
what nobody has tried. Inductor compiles kernels when a graph's code is complete, too late to lower one product anew.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from gemmdb.errors import MissError, TableError
from gemmdb.inductor.decide import refused
from gemmdb.inductor.observe.journal import JOURNAL, Event
from gemmdb.kernels.config import ATEN

log = logging.getLogger("gemmdb")
WHY = "a kernel of its graph could not be compiled"
T = TypeVar("T")
_local = threading.local()


def again() -> bool:
    """Whether this thread compiles a graph again, with ATen for every product."""
    return bool(getattr(_local, "again", False))


def attempt(compile_graph: Callable[[], T], with_aten: Callable[[], T]) -> T:
    """What `compile_graph` returns. If it raises, and kernels of gemmdb were part of the graph: what `with_aten`
    returns, while `again()` is true. Then no further graph of the process gets these kernels for the same problems.

    Kernels that were forced are not replaced: who measures them wants to know that they do not compile. If ATen does
    not compile either, the kernels were not at fault, and what it raises is raised.
    """
    before = JOURNAL.entries()
    JOURNAL.provisional |= refused.some()
    try:
        return compile_graph()
    except Exception as error:
        served = set() if _asked_for(error) else _served(JOURNAL.pending())
        if not served:
            raise
        text = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    JOURNAL.restore(before)
    JOURNAL.provisional = True  # Another process may have a compiler that works, or more memory.
    with _again():
        result = with_aten()
    JOURNAL.error(said := f"compiling {', '.join(sorted({config for _, config in served}))}: {text}")
    log.warning("gemmdb: ATen is served instead of kernels that could not be compiled: %s", said)
    for problem, config in served:
        refused.add(problem, config, text)
    return result


def _asked_for(error: BaseException | None) -> bool:
    """Whether an error is one that strict mode asks for. Inductor wraps what a lowering raises."""
    while error is not None:
        if isinstance(error, MissError | TableError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _served(events: list[Event]) -> set[tuple[str, str]]:
    """The problems and configs of the products that got a kernel from a table, a model or live tuning; none if some
    were forced."""
    kernels = [event for event in events if event.config not in ("", ATEN.text)]
    if any(event.rung == "forced" for event in kernels):
        return set()
    shared = [event for event in events if event.config and event.rung != "aten"]
    parts = {(event.problem, str(one["config"])) for event in shared for one in event.evidence.get("kernels", ())}
    return parts | {(event.problem, event.config) for event in kernels}


@contextmanager
def _again() -> Iterator[None]:
    _local.again = True
    try:
        yield
    finally:
        _local.again = False
