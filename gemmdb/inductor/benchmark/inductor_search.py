"""Inductor's own search for one missed GEMM. Its timings become rows of the user's table.

Used for GEMMs that the generator cannot measure during a compile: symbolic sizes, or an installation without the
generator's libraries. Only if the policy allows enough time.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from typing import Any

from gemmdb.inductor.decide import outcome
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.lower.adapter import state
from gemmdb.inductor.observe.journal import JOURNAL
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.toolchain import installed
from gemmdb.lookup.lowering import PACKED
from gemmdb.table.measurement import Measurement, Protocol, Status, Times

log = logging.getLogger("gemmdb")
PROTOCOL = Protocol("host", "hot", 1, 10, version=3)
"""Inductor's protocol on a CPU: back-to-back calls, wall clock."""
SPREAD = 0.05
"""Relative half width of a time's interval. Inductor reports one number per choice and no interval. This equals the
gain that the default policy requires of an unverified row, so two choices within 10% are tied."""


_searching = threading.local()
_run = f"live-{uuid.uuid4().hex[:16]}"


def search(decision: Decision, lower: Callable[[], Any]) -> Any:
    """Lower one GEMM with Inductor's search and store its timings."""
    _searching.decision = decision
    try:
        with state.searching():
            result = lower()
    finally:
        _searching.decision = None
    outcome.not_searched(decision)
    return result


def keep(timings: dict[Any, float], *_: Any) -> None:
    """Store the timings (choice -> milliseconds) of the GEMM being searched. Inductor calls this after each search.
    Never fails the compile."""
    decision = getattr(_searching, "decision", None)
    if decision is None:
        return
    try:
        rows = measurements(decision, timings)
        if not rows:
            return
        best = min(rows, key=lambda row: row.times.median_us if row.times else float("inf"))
        outcome.searched(decision, best.config)
        if decision.session.user_table is not None:
            from gemmdb.table.writer import record_live  # Only this path stores rows.

            record_live(decision.session.user_table, rows)
    except Exception as error:
        JOURNAL.error(f"live timings: {type(error).__name__}: {error}")
        log.warning("live timings of %s were not stored: %s", decision.problem.text, error)


def measurements(decision: Decision, timings: dict[Any, float]) -> list[Measurement]:
    """Return one row per timed choice that maps to a Config; no rows without a timed ATen choice to compare with.

    `timings`: choice -> milliseconds, infinite for a choice that failed.
    """
    named = [(_config(choice), ms * 1000) for choice, ms in timings.items()]
    reference = next((us for config, us in named if config == ATEN and us < 1e9), None)
    toolchain = installed(decision.query.device.kind)
    if reference is None or toolchain is None:
        return []
    rows = []
    for config, us in named:
        if config is None or decision.problem.op not in config.spec.ops:
            continue
        failed = not 0 < us < 1e9
        low, high = us * (1 - SPREAD), us * (1 + SPREAD)
        times = None if failed else Times(float(us), float(low), float(high), 1, float(reference))
        status = Status.ERROR if failed else Status.OK
        query = decision.query
        rows.append(Measurement(query.problem, config, query.device, PROTOCOL, toolchain, _run, status, times))
    return rows


def _config(choice: Any) -> Config | None:
    """Return the Config for one of Inductor's choices, None for a kernel that is not in the registry."""
    kind = type(choice).__name__
    if kind == "ExternKernelCaller":
        return ATEN
    return PACKED if "Cpp" in kind or "DataProcessor" in kind else None
