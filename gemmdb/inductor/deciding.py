"""Deciding: a Query becomes a Decision. The one place of the integration that asks a session's tables."""

from __future__ import annotations

from dataclasses import replace

from gemmdb.errors import MissError, TableError
from gemmdb.hit import Hit
from gemmdb.inductor import legality
from gemmdb.inductor.decision import Decision
from gemmdb.inductor.journal import JOURNAL, Event
from gemmdb.inductor.phases import PHASES
from gemmdb.inductor.session import Session
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Query


def ask(session: Session, query: Query) -> Hit | None:
    """The lookup; a failure inside it is a miss, and under `on_miss="error"` a broken table raises TableError."""
    try:
        with PHASES("lookup"):
            return session.find(query)
    except Exception as error:
        if session.policy.on_miss == "error":
            raise error if isinstance(error, TableError) else TableError(f"lookup failed: {error}") from error
        JOURNAL.failure("lookup", error)
        return None


def decide(session: Session, query: Query) -> Decision:
    """Look `query` up and say what to do. Raises MissError for a miss under `on_miss="error"`."""
    hit = ask(session, query)
    event = Event(query.problem.text, "aten", ATEN.text, query.device.text, ranges=dict(query.ranges))
    if hit is None:
        return _missed(session, query, event)
    event = event.answered(hit)
    refused = legality.refusal(hit, query)
    if refused is not None:
        return Decision(session, query, ATEN, event.refused(refused[1]), refused=True)
    return Decision(session, query, hit.config, event, hit.branches)


def _missed(session: Session, query: Query, event: Event) -> Decision:
    """Live tuning where the policy allows it, else ATen. Under `on_miss="error"` ATen only where nothing else is
    possible, which no build would measure; elsewhere it raises MissError."""
    why = _why(session, query)
    if alone := legality.only_aten(query):
        return Decision(session, query, ATEN, replace(event, note="; ".join(filter(None, (alone, why)))))
    if session.policy.on_miss == "error":
        rows = "strict mode needs its row: `gemmdb build --shapes WORKLOAD`, with --all if that leaves it out"
        raise MissError(f"no table answers for {query.problem.text} on {query.device.text}: {why}; {rows}")
    if to_tune(session, query):
        return Decision(session, query, None, replace(event, rung="live", config="", note=why))
    if session.policy.on_miss == "live":
        why = f"not tuned: {session.declines(query)}; {why}"
    return Decision(session, query, ATEN, replace(event, note=why))


def to_tune(session: Session, query: Query) -> bool:
    """Whether a query that misses is tuned now."""
    return session.policy.on_miss == "live" and not session.declines(query)


def leaves_alone(hit: Hit) -> bool:
    """Whether a lookup's answer is Inductor's own choice, for all sizes."""
    return hit.config == ATEN and not hit.branches


def _why(session: Session, query: Query) -> str:
    try:
        return session.why(query)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
