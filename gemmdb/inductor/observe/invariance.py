"""Which GEMMs batch invariance covers: for `stats()`, and as a warning for the others."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Iterable
from typing import Any

from gemmdb.inductor.observe.journal import Event

log = logging.getLogger("gemmdb")


def is_covered(event: Event) -> bool:
    """Return whether a GEMM runs a kernel with the summation order that was chosen for all M."""
    return "sum_order" in event.evidence and event.config.startswith("triton:")


def covered(events: Iterable[Event]) -> dict[str, Any] | None:
    """Return the number of covered GEMMs, and the others by their problems or names, with their numbers, of the
    compiles that asked for batch invariance; None without any."""
    events = [event for event in events if event.batch_invariant]
    if not events:
        return None
    others = Counter(event.problem for event in events if not is_covered(event))
    return {"covered": len(events) - others.total(), "not_covered": dict(others)}


def warn(events: Iterable[Event], artefact: object = None) -> None:
    """Warn of the GEMMs that batch invariance does not cover, if their compile asked for it. A listener of the
    journal."""
    for event in events:
        if event.batch_invariant and not is_covered(event):
            why = event.evidence.get("not_batch_invariant") or event.note or "gemmdb does not handle it"
            _warn(event.problem.partition(" ")[0], str(why))


@functools.cache
def _warn(op: str, why: str) -> None:
    """Warn once for each op and reason."""
    log.warning("gemmdb: the rows of a GEMM depend on the number of rows: %s: %s", op, why)
