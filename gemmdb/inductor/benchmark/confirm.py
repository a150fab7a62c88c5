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

from gemmdb.inductor.benchmark import confirm_rules as rules
from gemmdb.inductor.benchmark import subgraph as cutting
from gemmdb.inductor.benchmark.ahead import Ahead, Steer, ready
from gemmdb.inductor.benchmark.budget import BUDGET, over
from gemmdb.inductor.benchmark.confirm_job import Job, Result, Unconfirmed, store
from gemmdb.inductor.decide import legality
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.decide.session import Mode
from gemmdb.inductor.observe.journal import JOURNAL, Event
from gemmdb.kernels.config import ATEN
from gemmdb.lookup.confirmable import RUNGS
from gemmdb.lookup.policy_filter import gain
from gemmdb.phases import PHASES
from gemmdb.table.measurement import Measurement

log = logging.getLogger("gemmdb")
now = time.monotonic
"""The clock of what confirming may take."""
COMPILING = 0.5
"""The share of the allowed time after which no further product is compiled."""


class Confirmation:
    """The answers of one graph that are to be confirmed. Their kernels compile at once, and are waited for afterwards.
    Nothing in it raises, and random states stay as they are."""

    def __init__(self, steer: Steer, ahead: Ahead | None = None) -> None:
        self._steer, self._ahead = steer, ahead or Ahead()
        self._start: float | None = None
        self._limit_s = 0.0
        self._seen: set[object] = set()
        self._decided: dict[object, Decision] = {}
        self.jobs: list[Job] = []
        """What was begun and not finished."""

    def begin(self, pairs: Sequence[tuple[Any, Decision]]) -> None:
        """Begin to compile the answers among these that no measurement stands behind. Each product is given with its
        node."""
        doubted: list[tuple[Any, Decision]] = []
        try:
            new = [(node, one) for node, one in pairs if one.entry not in self._seen]
            doubted = [(node, one) for node, one in new if rules.in_doubt(one, node)]
            self._seen.update(one.entry for _, one in doubted)
            if doubted:
                self._begin(doubted)
        except Exception as error:
            JOURNAL.failure("confirming", error)
            self._give_up([decision for _, decision in doubted], "it failed")

    def decide(self, pairs: Sequence[tuple[Any, Decision]]) -> list[Decision]:
        """The decisions on products of the graph: those that were begun by a trial, or as without confirming."""
        if self.jobs:
            try:
                with BUDGET.spending():
                    self._finish()
            except Exception as error:
                JOURNAL.failure("confirming", error)
            self._give_up([one for job in self.jobs for one in job.decisions], "it failed")
            self.jobs = []
        return [self._decided.get(decision.entry, decision) for _, decision in pairs]

    def _begin(self, doubted: Sequence[tuple[Any, Decision]]) -> None:
        policy = doubted[0][1].session.policy
        if self._start is None:
            self._start, self._limit_s = now(), min(policy.confirm_s, BUDGET.left_s(policy))
        if self._limit_s <= 0:
            self._give_up([decision for _, decision in doubted], over(policy))
            return
        with BUDGET.spending():
            jobs, uncut = _jobs(doubted)
            for decision, reason in uncut:
                self._give_up([decision], reason)
            for job in jobs:
                why = _begin(job, self._ahead, self._steer, now() - self._start > COMPILING * self._limit_s)
                if why is None:
                    self.jobs.append(job)
                else:
                    self._give_up(job.decisions, why)

    def _finish(self) -> None:
        assert self._start is not None
        rows = list[Measurement]()
        start = now()
        for job in self.jobs:
            found = _finish(job, self._start + self._limit_s - now(), job.patience_s + start - now())
            if isinstance(found, str):
                self._give_up(job.decisions, found)
            else:
                self._decided |= {one.entry: _by_trial(one, found) for one in job.decisions}
                rows += found.rows
        store(self.jobs[0].decision.session.user_table, rows)
        decisions = [self._decided[one.entry] for job in self.jobs for one in job.decisions]
        confirmed = sum("confirmed" in decision.event.evidence for decision in decisions)
        log.info("confirmed %d of %d answers in %.2f s", confirmed, len(decisions), now() - self._start)

    def _give_up(self, decisions: Sequence[Decision], why: str) -> None:
        """Decide as without confirming what is not decided yet."""
        for one in decisions:
            if one.entry not in self._decided:
                self._decided[one.entry] = _unconfirmed(one, why)


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
        key = (decision.problem.text, decision.query.device.text, decision.config, piece.text, tuple(piece.warm))
        if key not in jobs:
            jobs[key] = Job(piece, key)
        jobs[key].decisions.append(decision)
    return sorted(jobs.values(), key=lambda job: -job.saved_us), uncut


def _begin(job: Job, ahead: Ahead, steer: Steer, late: bool) -> str | None:
    """Begin a job; why it was not begun, None when it was."""
    if late:
        return _over(job)
    if not rules.repays(job.saved_us, job.decision.session.policy):
        return f"it could save {job.saved_us:.1f} us of a call, which does not repay timing it"
    try:
        ahead.begin(job, steer)
    except (Unconfirmed, cutting.Uncut) as error:
        return str(error)
    except Exception as error:
        return _failed(job, error)
    return None


def _finish(job: Job, left_s: float, patience_s: float) -> Result | str:
    """The result of a job, or why there is none. The seconds: those that are left of what confirming may take, and
    those that waiting for this job is worth."""
    if left_s < 0 or not ready(job, min(left_s, patience_s)):
        return rules.UNPAID if 0 <= left_s > patience_s else _over(job)
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
    if event.rung not in RUNGS and not rules.unmeasured(decision):
        # It was measured with a weight from memory, and the program computes the weight.
        return replace(decision, config=ATEN, event=event.refused(note))
    if event.rung not in RUNGS:  # It was measured, though not as it is served.
        return replace(decision, event=replace(event, note=f"{event.note}; {note}" if event.note else note))
    try:
        with PHASES("lookup"):
            hit = decision.session.find(query, Mode.CERTAIN)
    except Exception as error:
        JOURNAL.failure("lookup", error)
        hit = None
    if hit is None or hit.branches or legality.hit_rejection(hit, query):
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
