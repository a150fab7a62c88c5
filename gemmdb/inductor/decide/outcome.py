"""What became of a Decision when it was lowered, recorded in the journal entry of its GEMM."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from gemmdb.errors import MissError, TableError
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.lower.adapter import state
from gemmdb.inductor.observe.journal import JOURNAL, SEARCH, Event
from gemmdb.kernels.config import ATEN, Config
from gemmdb.rejected import Rejected


def refuse(decision: Decision, why: str | Rejected) -> None:
    """ATen is lowered instead of the decided config. A branch adds its rows and the reason to its GEMM's note."""
    if not decision.is_branch:
        JOURNAL.correct(decision.entry, lambda event: _unanswered(event.refused(why)))
        return
    low, high = decision.query.ranges["m"]
    note = f"m from {low} to {'any' if high is None else high}: {why}"
    JOURNAL.correct(decision.entry, lambda event: replace(event, note=f"{event.note}; {note}" if event.note else note))


def replaced(decision: Decision, again: Decision) -> None:
    """The GEMM was decided again, for the layouts that its operands have in Inductor's IR."""
    if decision.is_branch:
        return
    new = _unanswered(again.event) if again.unanswered else again.event

    def replaced_by(event: Event) -> Event:
        return replace(new, device=event.device, ranges=event.ranges, module=event.module, source=event.source)

    JOURNAL.correct(decision.entry, replaced_by)


def left_alone(decision: Decision) -> None:
    """The GEMM is left to Inductor for want of an answer."""
    JOURNAL.correct(decision.entry, _unanswered)


def fallback(decision: Decision) -> AbstractContextManager[None]:
    """Within this block the lowering of a GEMM makes what its event says: ATen, or a search."""
    event = JOURNAL.read(decision.entry)
    return nullcontext() if event is not None and event.config == SEARCH else state.only_aten()


def _unanswered(event: Event) -> Event:
    """The event of a GEMM without an answer: ATen is lowered, or a search goes on if the user asked for it."""
    if not state.autotuning() or event.config != ATEN.text:
        return event
    note = "; ".join(filter(None, ("Inductor searches, as max_autotune asks", event.note)))
    return replace(event, config=SEARCH, expected_us=None, speedup=None, note=note)


def searched(decision: Decision, config: Config) -> None:
    """Inductor's search chose `config`."""
    JOURNAL.correct(decision.entry, lambda event: replace(event, config=config.text))


def not_searched(decision: Decision) -> None:
    """Inductor's search is over. If nothing was timed, the GEMM is ATen's."""
    note = "Inductor had one choice: nothing to search"
    JOURNAL.correct(
        decision.entry, lambda event: event if event.config else replace(event, config=ATEN.text, note=note)
    )


def attempt(decision: Decision | None, lower: Callable[[Decision], Any]) -> Any:
    """What `lower` makes of a decision; None without one, or if it fails, which is recorded. Raises MissError and
    TableError: strict mode wants them."""
    if decision is None:
        return None
    try:
        return lower(decision)
    except (MissError, TableError):
        raise
    except Exception as error:
        failed(decision, error)
        return None


def failed(decision: Decision, error: Exception) -> None:
    """The lowering raised `error`; ATen is lowered instead."""
    JOURNAL.failure("lowering", error)
    refuse(decision, f"the lowering failed: {type(error).__name__}")
