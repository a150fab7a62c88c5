"""Which missed products of a graph are tuned: those that repay the time that it takes, the most valuable first."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gemmdb.inductor.benchmark import live_rules as rules
from gemmdb.inductor.benchmark.budget import BUDGET
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.decide.session import Session
from gemmdb.key.problem import Problem, Query
from gemmdb.key.toolchain import installed
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.saving import repaying, saving
from gemmdb.settings import ASKED_CALLS, ASKED_S, QUICKLY, Policy

log = logging.getLogger("gemmdb")
FIRST_S, FURTHER_S = 3.0, 1.0
"""The seconds that tuning may take for the first product of a process, whose measuring process still has to start, and
for each further one."""


@dataclass(frozen=True)
class Pace:
    """The seconds of device time for a problem, and the seconds that measuring waits for what is not compiled."""

    device_s: float
    compile_s: float


PATIENT, QUICK = Pace(1.0, math.inf), Pace(0.3, 1.0)


def pace(policy: Policy) -> Pace:
    """How thoroughly a problem is measured."""
    return PATIENT if rules.patient(policy) else QUICK


def limit_s(policy: Policy, problems: int, ready: bool) -> float:
    """The most seconds that tuning this number of problems may hold up a graph, 0 when the process has none left.
    `ready`: the measuring process runs already. Whoever asks for `live` by name waits for as long as it takes, up to
    the policy's limit."""
    most = policy.live_s or ASKED_S
    if rules.patient(policy):
        return most
    left = left_s(policy)
    return min(most, left, _first_s(ready) + FURTHER_S * (problems - 1)) if left >= FURTHER_S else 0.0


def left_s(policy: Policy) -> float:
    """The seconds of the process that are left for live tuning: what one graph may take to be confirmed is kept, since
    most of what programs gain comes from that."""
    return BUDGET.left_s(policy) - (policy.confirm_s if policy.confirm else 0.0)


def ask_of(session: Session, query: Query) -> Ask:
    """The question what to try for a query: only configs that live tuning may compile."""
    policy = session.policy
    policy = replace(policy, compile_cost=min(policy.compile_cost, policy.live_cost))
    if policy.live_cost <= QUICKLY:  # It compiles with nvcc also what ships compiled.
        policy = policy.without_cutlass
    return Ask(query, tuple(session.tables()), policy, installed(query.device.kind))


def pays(
    session: Session, queries: Sequence[Query], ready: bool, missed: Callable[[Query], bool] = lambda query: True
) -> bool:
    """Whether tuning those of these products that `missed`, with their repetitions, repays the time that it takes. They
    are products of one graph and device. No more of them are asked about than it takes to know."""
    counts = Counter(query.problem for query in queries)
    by_problem = {query.problem: query for query in queries}
    us: dict[Problem, float] = {}
    for problem, count in counts.most_common():
        if missed(by_problem[problem]):
            us[problem] = count * saved_us(session, by_problem[problem])
            if repaying(us, _calls(session.policy), _first_s(ready), FURTHER_S):
                return True
    return False


def chosen(group: Sequence[Decision], ready: bool) -> tuple[list[Decision], Mapping[Problem, str]]:
    """(the decisions on products that repay being tuned, in the order in which to tune them; by problem, why the others
    are not tuned). `group`: missed products of one graph and device, at least one, with their repetitions."""
    session = group[0].session
    counts = Counter(decision.problem for decision in group)
    queries = {decision.problem: decision.query for decision in group}
    us = {problem: count * saved_us(session, queries[problem]) for problem, count in counts.items()}
    calls = _calls(session.policy)
    order = {problem: place for place, problem in enumerate(repaying(us, calls, _first_s(ready), FURTHER_S))}
    taken = sorted((d for d in group if d.problem in order), key=lambda d: order[d.problem])
    left = {
        problem: f"tuning would not repay within {calls:,} calls: it could save {one:.1f} us of each"
        for problem, one in us.items()
        if problem not in order
    }
    return taken, left


def saved_us(session: Session, query: Query) -> float:
    """The microseconds that tuning may save of each call of a product; infinite where there is no estimate."""
    try:
        found = saving(ask_of(session, query))
    except Exception as error:
        log.debug("no estimate for %s: %s", query.problem.text, error)
        return math.inf
    return math.inf if found is None else found.us


def _calls(policy: Policy) -> int:
    return policy.live_calls or ASKED_CALLS


def _first_s(ready: bool) -> float:
    return FURTHER_S if ready else FIRST_S
