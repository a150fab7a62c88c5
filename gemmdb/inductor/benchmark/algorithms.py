"""Algorithm search: chooses cuBLASLt's algorithm by timing, for GEMMs that would run ATen and that no row settles.

An algorithm takes the place of ATen's call, and the kernels around it stay as they are. So a GEMM is timed without its
epilogue, once for all GEMMs that differ only in that, and nothing is compiled. The rows are stored in the user table,
where the lookup finds them for any epilogue. Nothing here fails a compile.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gemmdb.hit import gain
from gemmdb.inductor.benchmark import algorithm_rules, limits, payoff
from gemmdb.inductor.benchmark.algorithm_jobs import NAME, Found, SearchJob, is_guess, jobs_of, saved_us
from gemmdb.inductor.benchmark.algorithm_rules import aten_us
from gemmdb.inductor.benchmark.limits import BUDGET, TrialLimit
from gemmdb.inductor.benchmark.storing import store
from gemmdb.inductor.decide import legality
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.observe.journal import JOURNAL, Event
from gemmdb.kernels.config import ATEN
from gemmdb.lookup.acceptance import extern
from gemmdb.rejected import Rejected
from gemmdb.table.measurement import Measurement

log = logging.getLogger("gemmdb")
MAX_KNOWN = 1024
_KNOWN: dict[object, Found | Rejected] = {}
"""Results of this process's trials, by operands: many programs compile their layers one by one."""


class Search:
    """The search of one graph. Never raises, and keeps random states unchanged."""

    def __init__(self) -> None:
        self._found: dict[object, Found] = {}

    def run(self, pairs: Sequence[tuple[Any, Decision]]) -> float:
        """Time the algorithms for the graph's GEMMs that are worth it, and return the seconds that this took. Each
        decision comes with its GEMM's node."""
        start = limits.now()
        self._found |= self._searched(pairs)
        return limits.now() - start

    def settle(self, pairs: Sequence[tuple[Any, Decision]]) -> Sequence[tuple[Any, Decision]]:
        """Return the pairs, with decisions for algorithms that were expected to be fast and not measured: a search is
        cheaper than confirming such a config. A GEMM whose activation cuBLASLt computes is decided for such an
        algorithm if that is faster, which is then confirmed."""
        guesses = [pair for pair in pairs if is_guess(pair[1])]
        if guesses:
            self.run(guesses)
            pairs = [(node, self._decide(decision)) for node, decision in pairs]
        if not any(decision.query.activation for _, decision in pairs):
            return pairs
        found = self._searched(pairs, of_activations=True)
        return [(node, _activated(decision, found.get(decision.entry))) for node, decision in pairs]

    def decide(self, decisions: Sequence[Decision]) -> list[Decision]:
        """Return the decisions, each with the algorithm where that saves more than its own config."""
        return [self._decide(decision) for decision in decisions]

    def _searched(self, pairs: Sequence[tuple[Any, Decision]], of_activations: bool = False) -> dict[object, Found]:
        """Return the results by the decisions' entries."""
        try:
            jobs = jobs_of(pairs, of_activations)
            if jobs and algorithm_rules.device_rejection(jobs[0].decisions[0].query.device) is None:
                with BUDGET.spending():
                    return _run(jobs)
        except Exception as error:
            JOURNAL.failure(NAME, error)
        return {}

    def _decide(self, decision: Decision) -> Decision:
        found = self._found.get(decision.entry)
        try:
            return decision if found is None else _decided(decision, found)
        except Exception as error:
            JOURNAL.failure(NAME, error)
            return decision


def _run(jobs: Sequence[SearchJob]) -> dict[object, Found]:
    """Search for the jobs that are worth it, in order, and return the results by the decisions' entries."""
    limit, rows, searched, results = TrialLimit(jobs[0].policy), list[Measurement](), 0, dict[object, Found]()
    for job in jobs:
        extent = limits.search_extent(job.us, job.policy)
        if not is_known(job) and limit.may_begin() and extent is not None:
            searched += 1
            remember(job, job.search(rows, extent))
        found = _KNOWN.get(job.key)
        if isinstance(found, Found):
            results |= {decision.entry: found for decision in job.decisions}
    store(jobs[0].decisions[0].session.user_table, rows)
    log.info("searched algorithms for %d of %d GEMMs in %.2f s", searched, len(jobs), limit.spent_s())
    return results


def _activated(decision: Decision, found: Found | None) -> Decision:
    """Return the decision for a kernel that computes the activation, too, if that saves more than the decision's own
    config. It has not been timed as it is served, so the old decision holds unless it is confirmed."""
    if found is None or found.config == ATEN or gain(found.ratio) < decision.session.policy.min_gain:
        return decision
    if found.saved_us <= saved_us(decision.event):
        return decision
    old = decision.event
    event = replace(
        old, rung="live", config=found.config.text, note="", expected_us=found.us, speedup=found.aten_us / found.us,
        disturbed=False,
        evidence={name: one for name, one in old.evidence.items() if name != "confirmed"},
    )  # fmt: skip
    return replace(decision, config=found.config, refused=False, event=event, instead=decision)


def _decided(decision: Decision, found: Found) -> Decision:
    if _wins(found, decision):
        return replace(decision, config=found.config, refused=False, event=_event(decision, found))
    if is_guess(decision):  # It is no faster than the other algorithms.
        return replace(decision, config=ATEN, event=decision.event.refused("no algorithm of cuBLASLt beats ATen here"))
    return decision


def is_known(job: SearchJob) -> bool:
    """Return whether this process has searched for a job."""
    return job.key in _KNOWN


def remember(job: SearchJob, found: Found | Rejected) -> None:
    """Keep the result of a search for other graphs of this process."""
    if len(_KNOWN) >= MAX_KNOWN:
        del _KNOWN[next(iter(_KNOWN))]
    _KNOWN[job.key] = found


def _wins(found: Found, decision: Decision) -> bool:
    """Return whether the algorithm is served: it gains what the policy requires, and saves more than the config."""
    if found.config == ATEN or gain(found.ratio) < decision.session.policy.min_gain:
        return False
    own_us = 0.0 if decision.config == ATEN or is_guess(decision) else saved_us(decision.event)
    if found.saved_us <= own_us:
        return False
    ask = payoff.ask_of(decision.session, decision.query)
    if decision.problem.epilogue is not None and extern.measured(ask, found.config):
        return False  # It did not win with the epilogue.
    return ask.rejection(found.config) is None and legality.rejection(found.config, decision.query) is None


def _event(decision: Decision, found: Found) -> Event:
    """Return the event of a GEMM that runs the algorithm. It saves as much of the fused GEMM's time as without the
    epilogue."""
    old, us = decision.event, found.aten_us
    if decision.problem.epilogue is not None:
        us = max(us, aten_us(decision))
    timed = {"config": found.config.text, "us": found.us, "aten_us": found.aten_us, "protocol": found.protocol}
    return replace(
        old, rung="live" if old.rung == "aten" else old.rung, config=found.config.text, note="",
        expected_us=us - found.saved_us, speedup=us / (us - found.saved_us), disturbed=False,
        evidence={**old.evidence, "confirmed": timed},
    )  # fmt: skip
