"""Deciding: a Query becomes a Decision. The one place of the integration that asks a session's tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gemmdb.errors import MissError, TableError
from gemmdb.hit import Hit
from gemmdb.inductor.decide import legality, uncompiled
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.entry.session import Session
from gemmdb.inductor.observe.journal import JOURNAL, Event
from gemmdb.inductor.observe.phases import PHASES
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Query

LATE = "an operand got another layout when it was lowered, too late to time anything"
"""Why a product that the graph pass decided is ATen's after all."""
_CERTAIN = ("exact", "forced")


def ask(session: Session, query: Query) -> Hit | None:
    """The lookup; a failure inside it is a miss, and under `on_miss="error"` a broken table raises TableError."""
    return _asked(session, session.find, query)


def _asked(session: Session, find: Callable[[Query], Hit | None], query: Query) -> Hit | None:
    try:
        with PHASES("lookup"):
            return find(query)
    except Exception as error:
        if session.policy.on_miss == "error":
            raise error if isinstance(error, TableError) else TableError(f"lookup failed: {error}") from error
        JOURNAL.failure("lookup", error)
        return None


def decide(session: Session, query: Query) -> Decision:
    """Look `query` up and say what to do. Raises MissError for a miss under `on_miss="error"`."""
    hit = ask(session, query)
    if uncompiled.again():
        event = _event(query) if hit is None else _event(query).answered(hit)
        return Decision(session, query, ATEN, event.refused(uncompiled.WHY), refused=True)
    if hit is None:
        return _missed(session, query)
    return _answered(session, query, hit)


def decide_late(session: Session, query: Query) -> Decision:
    """As `decide`, for a product whose layouts turned out to be others when it was lowered. Nothing can be timed any
    more: what was not measured is served only if it needs no confirmation. A miss is ATen, or raises as above."""
    hit = ask(session, query)
    if hit is None or hit.rung not in _CERTAIN:
        hit = _asked(session, session.unconfirmed, query)
    return _answered_late(session, query, hit, LATE)


def decide_without_cutlass(session: Session, query: Query, why: str) -> Decision:
    """As `decide_late`, for a product whose CUTLASS kernel cannot be had (`why`): the next best answer."""
    return _answered_late(session, query, _asked(session, session.without_cutlass, query), why)


def _answered_late(session: Session, query: Query, hit: Hit | None, why: str) -> Decision:
    if hit is None:
        return _missed(session, query, why)
    if hit.branches:
        event = _event(query).answered(hit).refused("several kernels share its rows")
        return Decision(session, query, ATEN, event, refused=True)
    return _answered(session, query, hit)


def _event(query: Query) -> Event:
    """The event of a product that is left to ATen."""
    return Event(query.problem.text, "aten", ATEN.text, query.device.text, ranges=dict(query.ranges))


def _answered(session: Session, query: Query, hit: Hit) -> Decision:
    event = _event(query).answered(hit)
    refused = legality.refusal(hit, query)
    if refused is not None:
        return Decision(session, query, ATEN, event.refused(refused[1]), refused=True)
    return Decision(session, query, hit.config, event, hit.branches)


def _missed(session: Session, query: Query, late: str = "") -> Decision:
    """Live tuning where the policy allows it and it is not too `late`, else ATen. Under `on_miss="error"` ATen only
    where nothing else is possible, which no build would measure; elsewhere it raises MissError."""
    event, why = _event(query), _why(session, query)
    if alone := legality.only_aten(query):
        return Decision(session, query, ATEN, replace(event, note="; ".join(filter(None, (alone, why)))))
    if session.policy.on_miss == "error":
        rows = "strict mode needs its row: `gemmdb build --shapes WORKLOAD`, with --all if that leaves it out"
        raise MissError(f"no table answers for {query.problem.text} on {query.device.text}: {why}; {rows}")
    if late:
        return Decision(session, query, ATEN, replace(event, note="; ".join(filter(None, (late, why)))))
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
