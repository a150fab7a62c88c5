"""Turns a Query into a Decision. The only module of the integration that queries a session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gemmdb.errors import MissError, TableError
from gemmdb.hit import Branches, Hit
from gemmdb.inductor.decide import legality, uncompiled
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.decide.session import Mode, Session
from gemmdb.inductor.lower.adapter import state
from gemmdb.inductor.observe.journal import JOURNAL, Event
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Query
from gemmdb.lookup import disturbed, lowering, slow_calls
from gemmdb.outcome import left_out, refusal
from gemmdb.phases import PHASES
from gemmdb.rejected import Rejected

RETURNED = "the program gets the output, whose rows would be padded"
"""Why a GEMM falls back to ATen where the answer is a view of padded rows."""
LAYOUT_CHANGED = "layout changed during lowering; cannot benchmark"
"""Why a GEMM falls back to ATen after the graph pass chose a config."""


def ask(session: Session, query: Query, mode: Mode = Mode.POLICY) -> Hit | None:
    """Return the session's hit. A failure inside it is a miss; with `on_miss="error"` it raises TableError."""
    try:
        with PHASES("lookup"):
            return session.find(query, mode)
    except Exception as error:
        if session.policy.on_miss == "error":
            raise error if isinstance(error, TableError) else TableError(f"lookup failed: {error}") from error
        JOURNAL.failure("lookup", error)
        return None


def decide(session: Session, query: Query) -> Decision:
    """Look up `query` and return a Decision. Raises MissError for a miss with `on_miss="error"`, also where batch
    invariance is asked for and does not cover the GEMM."""
    hit = ask(session, query)
    _require_invariance(session, query, hit)
    if uncompiled.again():
        event = _event(query) if hit is None else _event(query).answered(hit)
        return Decision(session, query, ATEN, event.refused(uncompiled.WITH_ATEN), refused=True)
    return _missed(session, query) if hit is None else _answered(session, query, hit)


def decide_late(session: Session, query: Query) -> Decision:
    """Like `decide`, for a GEMM whose layouts changed during lowering. Nothing can be timed at this point, so an
    unmeasured config is served only if it needs no confirmation. A miss runs ATen or raises, as above."""
    hit = ask(session, query)
    if hit is None or hit.rung not in ("exact", "forced"):
        hit = ask(session, query, Mode.CERTAIN)
    return _answered_late(session, query, hit, LAYOUT_CHANGED)


def decide_again(decision: Decision, mode: Mode, note: str) -> Decision:
    """Decide again in another mode of the session; ATen on a miss. `note`: added to the event."""
    old, query = decision.event, decision.query
    event = replace(_event(query), module=old.module, source=old.source)
    try:
        with PHASES("lookup"):
            hit = decision.session.find(query, mode)
    except Exception as error:
        JOURNAL.failure("lookup", error)
        hit = None
    config = ATEN
    if hit is not None and not hit.branches and _rejection(decision.session, query, hit) is None:
        config, event = hit.config, event.answered(hit)
        note = "; ".join(filter(None, (note, _refused(hit))))
    return replace(decision, config=config, event=replace(event, note=note))


def decide_anew(decision: Decision) -> Decision:
    """Decide again after rows were stored for the GEMM, or for sizes of its range; as before on a miss."""
    session = decision.session.remembering()
    hit = ask(session, decision.query)
    if hit is None:
        return decision
    found = _answered(session, decision.query, hit)
    event = decision.event.succeeded(found.event)
    return replace(
        decision, session=session, config=found.config, branches=found.branches, refused=found.refused, event=event
    )


def decide_without_cutlass(session: Session, query: Query, why: str) -> Decision:
    """Like `decide_late`, for a GEMM whose CUTLASS kernel is unavailable (`why`): use the next best config, or the next
    best ones that can share a symbolic M."""
    hit = ask(session, query, Mode.WITHOUT_CUTLASS)
    if hit is not None and hit.branches and all(lowering.joins(config, query.problem) for _, config in hit.branches):
        return _answered(session, query, hit)
    return _answered_late(session, query, hit, why)


def decide_dense(session: Session, query: Query) -> Decision:
    """Like `decide_late`, for a GEMM whose output the program gets, where the answer is a view of padded rows: use the
    next best config. The program may need dense rows, as it gets them without padding."""
    return _answered_late(session, query, ask(session, query, Mode.DENSE), RETURNED)


def _answered_late(session: Session, query: Query, hit: Hit | None, why: str) -> Decision:
    _require_invariance(session, query, hit)
    if hit is None:
        return _missed(session, query, why)
    if hit.branches and session.policy.batch_invariant:
        hit = replace(hit, config=_alone(query, hit.config, hit.branches), branches=(), evidence=_of_one(hit.evidence))
    elif hit.branches:
        return _with_aten(session, query, _event(query).answered(hit), Rejected("several kernels share its rows"))
    return _answered(session, query, hit)


def alone(decision: Decision, why: str) -> Decision:
    """Use one kernel for all M in place of several that add in one order and cannot be lowered (`why`). The event names
    it, without its time at other M."""
    assert decision.config is not None
    config = _alone(decision.query, decision.config, decision.branches)

    def changed(event: Event) -> Event:
        note = "; ".join(filter(None, (event.note, f"one kernel for all rows: {why}")))
        known = (event.expected_us, event.speedup) if config == decision.config else (None, None)
        evidence = _of_one(event.evidence)
        return replace(
            event, config=config.text, note=note, evidence=evidence, expected_us=known[0], speedup=known[1],
        )  # fmt: skip

    JOURNAL.correct(decision.entry, changed)
    return replace(decision, config=config, branches=())


def _alone(query: Query, config: Config, branches: Branches) -> Config:
    """Return the kernel at the hint, or the first of the others, from that for the most rows, that is legal for all
    M."""
    configs = [config, *(one for _, one in reversed(branches))]
    return next((one for one in configs if legality.rejection(one, query) is None), config)


def _of_one(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """Return the evidence of several kernels without their list."""
    return {name: fact for name, fact in evidence.items() if name != "kernels"}


def _require_invariance(session: Session, query: Query, hit: Hit | None) -> None:
    """Raise MissError if the rows of a GEMM would depend on M and must not."""
    if not _is_required(session, query) or (hit and "sum_order" in hit.evidence and not uncompiled.again()):
        return
    why = session.explain_miss(query) if hit is None else hit.evidence.get("not_batch_invariant", uncompiled.WITH_ATEN)
    raise MissError(f"no batch-invariant kernel for {query.problem.text} on {query.device.text}: {why}")


def _is_required(session: Session, query: Query) -> bool:
    """Whether the rows of a GEMM must not depend on M: strict mode with batch invariance."""
    return session.policy.batch_invariant and session.policy.on_miss == "error" and not query.problem.empty


def _with_aten(session: Session, query: Query, event: Event, why: Rejected) -> Decision:
    """Use ATen in place of a hit that cannot be lowered. `event`: that of the hit. Raises MissError if the rows must
    not depend on M."""
    if _is_required(session, query):
        raise MissError(f"no batch-invariant kernel for {query.problem.text} on {query.device.text}: {why}")
    return Decision(session, query, ATEN, event.refused(why), refused=True)


def _event(query: Query) -> Event:
    """Return the event of a GEMM that falls back to ATen."""
    ranges = dict(query.ranges)
    return Event(query.problem.text, "aten", ATEN.text, query.device.text, ranges=ranges, computed=query.computed)


def _answered(session: Session, query: Query, hit: Hit) -> Decision:
    event = replace(_event(query).answered(hit), disturbed=disturbed(hit, query, session.tables()))
    if rejected := _rejection(session, query, hit):
        return _with_aten(session, query, event, rejected)
    return Decision(session, query, hit.config, replace(event, note=_refused(hit)), hit.branches)


def _refused(hit: Hit) -> str:
    """Return why a hit is not what its tables would have served; empty if it is."""
    return refusal(hit.evidence) if hit.config == ATEN and not hit.branches else left_out(hit.evidence)


def _rejection(session: Session, query: Query, hit: Hit) -> Rejected | None:
    """Return why a hit is not used: Inductor cannot lower it, or its calls take the host too long. A lookup has left
    out such configs; a forced one is used however long its calls take."""
    found = legality.hit_rejection(hit, query)
    if found or hit.rung == "forced":
        return found
    return slow_calls(hit.config, query, hit.expected_us, hit.speedup, state.applied(session.policy))


def allowed(decision: Decision, hit: Hit) -> bool:
    """Return whether a hit for the decision's GEMM can be used."""
    return _rejection(decision.session, decision.query, hit) is None


def charged(decision: Decision) -> Decision:
    """Return a decision whose times were measured in this compile, or ATen if the calls of its config take the host too
    long."""
    event, config, us, speedup = decision.event, decision.config, decision.event.expected_us, decision.event.speedup
    if config is None or us is None or speedup is None or decision.branches or event.rung == "forced":
        return decision
    rejected = slow_calls(config, decision.query, us, speedup, state.applied(decision.session.policy))
    return replace(decision, config=ATEN, event=event.refused(rejected), refused=True) if rejected else decision


def _missed(session: Session, query: Query, late: str = "") -> Decision:
    """Use live tuning where the policy allows it and it is not too `late`, else ATen. With `on_miss="error"`, use ATen
    only if no other kernel is possible, which no build would measure; otherwise raise MissError."""
    event = _event(query)
    try:
        why = session.explain_miss(query)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"

    def aten(*notes: object) -> Decision:
        return Decision(session, query, ATEN, replace(event, note="; ".join(filter(None, map(str, notes)))))

    if found := lowering.only_aten(query):
        return aten(found, why)
    if session.policy.on_miss == "error":
        rows = "strict mode needs its row: `gemmdb build --shapes WORKLOAD`, with --all if that leaves it out"
        raise MissError(f"no table answers for {query.problem.text} on {query.device.text}: {why}; {rows}")
    if late:
        return aten(late, why)
    if session.policy.on_miss == "live":
        if found := session.tuning_rejection(query):
            return aten(f"not tuned: {found}; {why}")
        return Decision(session, query, None, replace(event, rung="live", config="", note=why))
    return aten(why)


def to_tune(session: Session, query: Query) -> bool:
    """Return whether a query that misses is tuned live."""
    return session.policy.on_miss == "live" and session.tuning_rejection(query) is None
