"""The algorithm search for a symbolic M: at the hint and at other sizes that decide, where ATen or a guess would run.

The rows are stored in the user table, as for a fixed M, and the lookup then divides the range by them. A size is
searched only if that pays off with its share of the calls, so mostly the long GEMMs of large sizes are. Nothing here
fails a compile.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gemmdb.inductor.benchmark import algorithm_rules, at_rows, limits, payoff
from gemmdb.inductor.benchmark.algorithm_jobs import NAME, SearchJob, operands_of
from gemmdb.inductor.benchmark.algorithm_trial import Operands
from gemmdb.inductor.benchmark.limits import BUDGET, Extent, TrialLimit
from gemmdb.inductor.benchmark.storing import store
from gemmdb.inductor.benchmark.trial import Untimed
from gemmdb.inductor.decide import deciding
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.match.fx import Unsupported
from gemmdb.inductor.observe.journal import JOURNAL, Event
from gemmdb.kernels.config import ATEN, Config
from gemmdb.lookup.acceptance import by_rows
from gemmdb.lookup.acceptance.size import MOST_ROWS
from gemmdb.table.measurement import Measurement

log = logging.getLogger("gemmdb")


class SizeJob(SearchJob):
    """GEMMs of one graph at one of the sizes of their range. `share`: of the calls that have that size."""

    def __init__(self, operands: Operands, share: float) -> None:
        super().__init__(operands)
        self.share, self.wholes = share, set[object]()

    @property
    def order(self) -> tuple[float, float]:
        """Jobs with the largest share come first, then those with the longest time."""
        return -self.share, -self.us

    @property
    def extent(self) -> Extent | None:
        """How much is searched, None if no search pays off."""
        return limits.search_extent(self.share * self.us, self.policy)


def divided(pairs: Sequence[tuple[Any, Decision]]) -> Sequence[tuple[Any, Decision]]:
    """Return the pairs, with new decisions for the ranges at whose sizes algorithms were timed. Never raises, and keeps
    random states unchanged."""
    try:
        jobs = _jobs(pairs)
        if not jobs or algorithm_rules.device_rejection(jobs[0].decisions[0].query.device):
            return pairs
        with BUDGET.spending():
            timed = _run(jobs)
        return [(node, deciding.decide_anew(one) if one.entry in timed else one) for node, one in pairs]
    except Exception as error:
        JOURNAL.failure(NAME, error)
        return pairs


def _run(jobs: Sequence[SizeJob]) -> set[object]:
    """Search for the jobs that pay off, and return the entries of the decisions for whose sizes there are new rows."""
    limit, rows, timed = TrialLimit(jobs[0].policy), list[Measurement](), set[object]()
    for job in sorted(jobs, key=lambda job: job.order):
        if (extent := job.extent) is not None and limit.may_begin():
            before = len(rows)
            job.search(rows, extent)
            timed |= job.wholes if len(rows) > before else set()
    store(jobs[0].decisions[0].session.user_table, rows)
    log.info("searched algorithms at sizes of %d symbolic GEMMs in %.2f s", len(timed), limit.spent_s())
    return timed


def _jobs(pairs: Sequence[tuple[Any, Decision]]) -> list[SizeJob]:
    jobs: dict[object, SizeJob] = {}
    for node, whole in pairs:
        for part, share in _parts(whole):
            try:
                if algorithm_rules.rejection(part, node) is None:
                    operands = operands_of(node, part)
                    job = jobs.setdefault(operands.key, SizeJob(operands, share))
                    job.add(part)
                    job.wholes.add(whole.entry)
            except (Untimed, Unsupported) as error:
                log.debug("%s: not for %s: %s", NAME, part.problem.head, error)
    return list(jobs.values())


def _parts(decision: Decision) -> Iterator[tuple[Decision, float]]:
    """Yield decisions for the sizes of a range for which an algorithm may be faster, each with its share of the calls.
    The hint may be the only size that runs, and counts in full."""
    if not decision.query.symbolic or decision.is_branch or decision.config is None or decision.only_timed:
        return
    ask = payoff.ask_of(decision.session, decision.query)
    if not by_rows.joinable(ask):
        return
    numbers, _ = by_rows.rows(ask)
    facts = {int(one["m"]): one for one in decision.event.evidence.get("sizes", ())}
    guessed = {int(one["m"]) for one in decision.event.evidence.get("unmeasured", ())}
    for rows in numbers:
        config = at_rows.served(decision, rows)
        if rows <= MOST_ROWS and (config == ATEN or rows in guessed):
            share = 1.0 if rows == decision.problem.m else 1 / len(numbers)
            yield _at(decision, rows, config, facts.get(rows, {})), share


def _at(decision: Decision, rows: int, config: Config, facts: Mapping[str, Any]) -> Decision:
    """Return the decision for one size. `facts`: what is known of its config there."""
    problem = decision.problem.resized(rows, decision.problem.n, decision.problem.k)
    query = replace(decision.query, problem=problem, ranges={})
    rung = "near" if config != ATEN else facts.get("rung") or "aten"
    event = Event(
        problem.text, rung, config.text, query.device.text,
        expected_us=facts.get("expected_us"), speedup=facts.get("speedup"),
    )  # fmt: skip
    return replace(decision, query=query, config=config, event=event, branches=(), refused=False, entry=object())
