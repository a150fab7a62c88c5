"""Outcomes of lowering a Decision, recorded in the GEMM's journal entry."""

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
from gemmdb.outcome import RESPELLED
from gemmdb.rejected import Rejected


def refuse(decision: Decision, why: str | Rejected) -> None:
    """Record that ATen is lowered instead of the chosen config. A branch adds its rows and the reason to its GEMM's
    note. Raises MissError if strict mode asks for batch invariance."""
    policy = decision.session.policy
    if policy.batch_invariant and policy.on_miss == "error":
        raise MissError(f"no batch-invariant kernel for {decision.problem.text}: {why}")
    if not decision.is_branch:
        JOURNAL.correct(decision.entry, lambda event: _unanswered(event.refused(why)))
        return
    JOURNAL.correct(decision.entry, lambda event: _noted(event, _of_rows(decision, why)))


def respelled(decision: Decision, config: Config) -> None:
    """Record that `config`, which ATen stands for in the tables, is lowered in place of the program's own spelling. It
    takes the time of the table's ATen, which is not that of default mode."""

    def changed(event: Event) -> Event:
        note = _of_rows(decision, RESPELLED) if decision.is_branch else RESPELLED
        event = event if RESPELLED in event.note else _noted(event, note)
        return replace(event, config=config.text, speedup=None) if event.config == ATEN.text else event

    JOURNAL.correct(decision.entry, changed)


def _of_rows(decision: Decision, why: str | Rejected) -> str:
    low, high = decision.query.ranges["m"]
    return f"m from {low} to {'any' if high is None else high}: {why}"


def _noted(event: Event, note: str) -> Event:
    return replace(event, note=f"{event.note}; {note}" if event.note else note)


def replaced(decision: Decision, again: Decision) -> None:
    """Record a new decision for the GEMM, based on its operands' layouts in Inductor's IR."""
    if decision.is_branch:
        return
    new = _unanswered(again.event) if again.unanswered else again.event

    def replaced_by(event: Event) -> Event:
        return event.succeeded(new)

    JOURNAL.correct(decision.entry, replaced_by)


def left_alone(decision: Decision) -> None:
    """Record that the GEMM is left to Inductor because the lookup missed."""
    JOURNAL.correct(decision.entry, _unanswered)


def fallback(decision: Decision) -> AbstractContextManager[None]:
    """Inside this block, the lowering of a GEMM follows its event: ATen, or a search."""
    event = JOURNAL.read(decision.entry)
    return nullcontext() if event is not None and event.config == SEARCH else state.only_aten()


def _unanswered(event: Event) -> Event:
    """Return the event of a missed GEMM: ATen is lowered, or Inductor searches if the user enabled that."""
    if not state.autotuning() or event.config != ATEN.text:
        return event
    note = "; ".join(filter(None, ("Inductor searches, as max_autotune asks", event.note)))
    return replace(event, config=SEARCH, expected_us=None, speedup=None, note=note)


def searched(decision: Decision, config: Config) -> None:
    """Record that Inductor's search chose `config`."""
    JOURNAL.correct(decision.entry, lambda event: replace(event, config=config.text))


def not_searched(decision: Decision) -> None:
    """Record the end of Inductor's search. If nothing was timed, the GEMM runs ATen."""
    note = "Inductor had one choice: nothing to search"
    JOURNAL.correct(
        decision.entry, lambda event: event if event.config else replace(event, config=ATEN.text, note=note)
    )


def attempt(decision: Decision | None, lower: Callable[[Decision], Any]) -> Any:
    """Lower a decision and return the result; None without a decision, or if `lower` fails, which is recorded. Raises
    MissError and TableError, for strict mode."""
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
    """Record that the lowering raised `error` and ATen is lowered instead."""
    JOURNAL.failure("lowering", error)
    refuse(decision, f"the lowering failed: {type(error).__name__}")
