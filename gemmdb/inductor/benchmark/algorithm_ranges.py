"""The algorithm search for a symbolic M: at the hint and at other sizes that decide, where ATen or a guess would run.

The rows are stored in the user table, as for a fixed M, and the lookup then divides the range by them. A size is
searched only if that pays off with its share of the calls (the same for all that decide, but the hint), so mostly the
long GEMMs of large sizes are. Nothing here fails a compile.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gemmdb.inductor.benchmark import algorithm_rules, at_rows, limits, payoff
from gemmdb.inductor.benchmark.algorithm_jobs import NAME, SearchJob, operands_of
from gemmdb.inductor.benchmark.algorithm_trial import Operands
from gemmdb.inductor.benchmark.algorithms import is_known, remember
from gemmdb.inductor.benchmark.limits import BUDGET, TrialLimit
from gemmdb.inductor.benchmark.storing import store
from gemmdb.inductor.benchmark.trial import Untimed
from gemmdb.inductor.decide import deciding
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.decide.session import Session
from gemmdb.inductor.lower.adapter import state
from gemmdb.inductor.match.fx import Unsupported
from gemmdb.inductor.observe.journal import JOURNAL
from gemmdb.kernels.config import ATEN, Config
from gemmdb.table.measurement import Measurement

log = logging.getLogger("gemmdb")


@dataclass(frozen=True)
class _Size:
    """Equal GEMMs at one size of their range: a decision for that size, and the entries of those for the range. `us`:
    their microseconds with ATen, times the share of the calls that have the size. The hint may be the only size that
    runs, and counts in full."""

    decision: Decision
    wholes: frozenset[object]
    is_hint: bool
    us: float


class SizeJob(SearchJob):
    """GEMMs of one graph at one size of their ranges. `wholes`: the entries of the decisions for the ranges. `us`: that
    of its sizes."""

    def __init__(self, operands: Operands) -> None:
        super().__init__(operands)
        self.wholes, self.is_hint = set[object](), False

    def add_size(self, size: _Size) -> None:
        """Add GEMMs with the same range."""
        self.decisions.append(size.decision)
        self.wholes |= size.wholes
        self.is_hint |= size.is_hint
        self.us += size.us

    @property
    def order(self) -> tuple[bool, float]:
        """Jobs at a hint come first, then those that may save most."""
        return not self.is_hint, -self.us


def divided(pairs: Sequence[tuple[Any, Decision]]) -> Sequence[tuple[Any, Decision]]:
    """Return the pairs, with new decisions for the ranges at whose sizes algorithms were timed. Never raises, and keeps
    random states unchanged."""
    try:
        symbolic = [pair for pair in pairs if _may_search(pair[1])]
        if not symbolic or algorithm_rules.device_rejection(symbolic[0][1].query.device):
            return pairs
        with BUDGET.spending():
            jobs = _jobs(symbolic)
            timed = _run(jobs, symbolic[0][1].session) if jobs else set()
        return [(node, deciding.decide_anew(one) if one.entry in timed else one) for node, one in pairs]
    except Exception as error:
        JOURNAL.failure(NAME, error)
        return pairs


def _may_search(decision: Decision) -> bool:
    """Return whether algorithms may be timed for sizes of a decision's range, and their rows be found."""
    if not decision.query.symbolic or decision.is_branch or decision.config is None or decision.only_timed:
        return False
    if decision.event.rung == "forced" or (decision.unanswered and state.autotuning()):
        return False
    return decision.session.user_table is not None


def _run(jobs: Sequence[SizeJob], session: Session) -> set[object]:
    """Search for the jobs that pay off, and return the entries of the decisions for whose sizes there are new rows.
    What one graph's confirmation may take is left of the budget."""
    limit, rows, timed = TrialLimit(session.policy), list[Measurement](), set[object]()
    most_s = BUDGET.left_s(session.policy) - session.policy.confirm_s
    for job in sorted(jobs, key=lambda job: job.order):
        extent = limits.search_extent(job.us, job.policy)
        if extent is None or is_known(job) or not limit.may_begin() or limit.spent_s() > most_s:
            continue
        before = len(rows)
        remember(job, job.search(rows, extent))
        timed |= job.wholes if len(rows) > before else set()
    store(session.user_table, rows)
    log.info("searched algorithms at sizes of %d symbolic GEMMs in %.2f s", len(timed), limit.spent_s())
    return timed


def _jobs(pairs: Sequence[tuple[Any, Decision]]) -> list[SizeJob]:
    """Return the jobs. Equal GEMMs share theirs, on the operands of the first."""
    equal: dict[object, list[tuple[Any, Decision]]] = defaultdict(list)
    for node, decision in pairs:
        equal[decision.problem, *sorted(decision.query.ranges.items())].append((node, decision))
    jobs: dict[object, SizeJob] = {}
    for (node, first), *more in equal.values():
        for size in _sizes(first, frozenset(one.entry for _, one in ((node, first), *more))):
            try:
                if algorithm_rules.rejection(size.decision, node) is None:
                    operands = operands_of(node, size.decision)
                    jobs.setdefault(operands.key, SizeJob(operands)).add_size(size)
            except (Untimed, Unsupported) as error:
                log.debug("%s: not for %s: %s", NAME, size.decision.problem.head, error)
    return list(jobs.values())


def _sizes(decision: Decision, wholes: frozenset[object]) -> Iterator[_Size]:
    """Yield the sizes of a range at which an algorithm may be faster and a search pays off."""
    from gemmdb.lookup.acceptance import by_rows  # Not before it is needed: enabling imports this module.
    from gemmdb.lookup.acceptance.size import MOST_ROWS

    ask = payoff.ask_of(decision.session, decision.query)
    if not by_rows.joinable(ask):
        return
    numbers = by_rows.rows(ask).usual
    facts = {int(one["m"]): one for one in decision.event.evidence.get("sizes", ())}
    guessed = {int(one["m"]) for one in decision.event.evidence.get("unmeasured", ())}
    for rows in numbers:
        config = at_rows.served(decision, rows)
        if rows > MOST_ROWS or (config != ATEN and rows not in guessed):
            continue
        part, is_hint = _at(decision, rows, config, facts.get(rows, {})), rows == decision.problem.m
        us = len(wholes) * algorithm_rules.aten_us(part) * (1.0 if is_hint else 1 / len(numbers))
        if limits.search_extent(us, decision.session.policy) is not None:  # Operands take longer to make.
            yield _Size(part, wholes, is_hint, us)


def _at(decision: Decision, rows: int, config: Config, facts: Mapping[str, Any]) -> Decision:
    """Return the decision for one size. `facts`: what is known of its config there."""
    us, speedup, rung = facts.get("expected_us"), facts.get("speedup"), "near"
    if config == ATEN:  # Also in place of a kernel that cannot be lowered.
        us, speedup, rung = us and speedup and us * speedup, us and 1.0, facts.get("rung") or "aten"
    found = at_rows.at_size(decision, rows, config, rung=rung, expected_us=us, speedup=speedup, note="")
    return replace(found, refused=False)
