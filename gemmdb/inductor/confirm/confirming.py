"""Times the unmeasured answers of one graph beside ATen, as the code that Inductor makes of them, and decides anew.

Each product is compiled twice, with the elementwise work that follows it, and both codes run on random tensors in this
process. The rows go to the user's table, so the next compile finds the problem measured. What cannot be timed is
answered as without confirming. Nothing in here fails a compile.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gemmdb.inductor import legality
from gemmdb.inductor.budget import BUDGET, over
from gemmdb.inductor.confirm import cutting, rules
from gemmdb.inductor.confirm.job import Job, Result, Steer, Unconfirmed
from gemmdb.inductor.decision import Decision
from gemmdb.inductor.journal import JOURNAL, Event
from gemmdb.inductor.phases import PHASES
from gemmdb.kernels.config import ATEN
from gemmdb.ladder.policy_filter import gain

log = logging.getLogger("gemmdb")
now = time.monotonic
"""The clock of what confirming may take."""
COMPILING = 0.5
"""The share of the allowed time after which no further product is compiled."""


def confirm(pairs: Sequence[tuple[Any, Decision]], steer: Steer) -> list[Decision]:
    """The decisions on products of one graph, each given with its node. Those that no measurement stands behind are
    decided by a trial, or as without confirming. Never raises, and leaves random states alone."""
    doubted = [(node, decision) for node, decision in pairs if rules.in_doubt(decision)]
    if not doubted:
        return [decision for _, decision in pairs]
    decided: dict[object, Decision] = {}
    try:
        _decide(doubted, steer, decided)
    except Exception as error:
        JOURNAL.failure("confirming", error)
    for _, decision in doubted:
        if decision.entry not in decided:
            decided[decision.entry] = _unconfirmed(decision, "it failed")
    return [decided.get(decision.entry, decision) for _, decision in pairs]


def _decide(doubted: Sequence[tuple[Any, Decision]], steer: Steer, decided: dict[object, Decision]) -> None:
    """Put the decisions on doubted answers into `decided`, by entry."""
    policy = doubted[0][1].session.policy
    limit_s = min(policy.confirm_s, BUDGET.left_s(policy))
    if limit_s <= 0:
        decided |= {decision.entry: _unconfirmed(decision, over(policy)) for _, decision in doubted}
        return
    with BUDGET.spending():
        _try(doubted, steer, decided, limit_s)


def _try(
    doubted: Sequence[tuple[Any, Decision]], steer: Steer, decided: dict[object, Decision], limit_s: float
) -> None:
    """As `_decide`, for `limit_s` seconds."""
    start = now()
    jobs, uncut = _jobs(doubted)
    decided |= {decision.entry: _unconfirmed(decision, why) for decision, why in uncut}
    begun = []
    # The kernels of all products compile at once, and are waited for afterwards.
    for job in jobs:
        why = _begin(job, steer, now() - start > COMPILING * limit_s)
        if why is None:
            begun.append(job)
        else:
            decided |= {one.entry: _unconfirmed(one, why) for one in job.decisions}
    for job in begun:
        found = _finish(job, now() - start > limit_s)
        for one in job.decisions:
            decided[one.entry] = _unconfirmed(one, found) if isinstance(found, str) else _by_trial(one, found)
    confirmed = sum("confirmed" in decision.event.evidence for decision in decided.values())
    log.info("confirmed %d of %d answers in %.2f s", confirmed, len(doubted), now() - start)


def _jobs(doubted: Sequence[tuple[Any, Decision]]) -> tuple[list[Job], list[tuple[Decision, str]]]:
    """(the jobs, those that save most first; the products that cannot be cut out, with the reasons)."""
    places = {node: place for place, node in enumerate(doubted[0][0].graph.nodes)}
    jobs: dict[object, Job] = {}
    uncut = []
    for node, decision in doubted:
        try:
            piece = cutting.cut(node, decision.problem, places)
        except cutting.Uncut as error:
            uncut.append((decision, str(error)))
            continue
        key = (decision.problem.text, decision.query.device.text, decision.config, piece.text)
        jobs.setdefault(key, Job(piece, [])).decisions.append(decision)
    return sorted(jobs.values(), key=lambda job: -job.saved_us), uncut


def _begin(job: Job, steer: Steer, late: bool) -> str | None:
    """Begin a job; why it was not begun, None when it was."""
    if late:
        return _over(job)
    try:
        job.begin(steer)
    except (Unconfirmed, cutting.Uncut) as error:
        return str(error)
    except Exception as error:
        return _failed(job, error)
    return None


def _finish(job: Job, late: bool) -> Result | str:
    """The result of a job, or why there is none."""
    if late:
        return _over(job)
    try:
        return job.finish()
    except Unconfirmed as error:
        return str(error)
    except Exception as error:
        return _failed(job, error)


def _over(job: Job) -> str:
    return f"{job.decision.session.policy.confirm_s:g} s were over"


def _failed(job: Job, error: Exception) -> str:
    log.debug("confirming %s as %s", job.decision.problem.text, job.decision.config, exc_info=True)
    text = f"{type(error).__name__}: {error}"
    JOURNAL.error(f"confirming: {text}")
    return text.splitlines()[0][:200]


def _by_trial(decision: Decision, found: Result) -> Decision:
    """The decision for the faster of the answer and ATen. The answer has to gain what the policy asks for."""
    assert decision.config is not None
    verdict, old, name = found.verdict, decision.event, decision.config.name
    if verdict is None:
        return replace(decision, config=ATEN, event=old.refused(f"{name} is wrong here: its result is not ATen's"))
    ours = verdict.pick == decision.config and gain(verdict.ratio) >= decision.session.policy.min_gain
    speedup = found.aten_us / found.us if ours else 1.0
    timed = {"config": decision.config.text, "us": found.us, "aten_us": found.aten_us}
    event = replace(
        old,
        config=old.config if ours else ATEN.text,
        expected_us=found.aten_us / speedup,
        speedup=speedup,
        evidence={**old.evidence, "confirmed": {**timed, "protocol": verdict.protocol.text}},
        note="" if ours else f"{name} takes {found.us:.1f} us here, ATen {found.aten_us:.1f}",
    )
    return replace(decision, config=decision.config if ours else ATEN, event=event)


def _unconfirmed(decision: Decision, why: str) -> Decision:
    """The decision that is made where nothing is confirmed; its event says why it was not."""
    event, query, note = decision.event, decision.query, f"not confirmed: {why}"
    if event.rung not in rules.RUNGS:  # It was measured, though not as it is served.
        return replace(decision, event=replace(event, note=f"{event.note}; {note}" if event.note else note))
    try:
        with PHASES("lookup"):
            hit = decision.session.unconfirmed(query)
    except Exception as error:
        JOURNAL.failure("lookup", error)
        hit = None
    if hit is None or hit.branches or legality.refusal(hit, query):
        config, event = (
            ATEN,
            Event(
                event.problem,
                "aten",
                ATEN.text,
                event.device,
                ranges=event.ranges,
                module=event.module,
                source=event.source,
            ),
        )
    else:
        config, event = hit.config, event.answered(hit)
    return replace(decision, config=config, event=replace(event, note=note))
