"""Selects the missed GEMMs of a graph that are worth tuning live, most valuable first."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import monotonic

from gemmdb.devices import detect, load
from gemmdb.inductor.benchmark import limits
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.decide.session import Session
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.key.toolchain import installed
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.saving import Saving, repaying, saving
from gemmdb.rejected import Rejected
from gemmdb.settings import FAST_COMPILE_COST, Policy

log = logging.getLogger("gemmdb")
BUSY = 0.5
"""Fraction of processors busy with other work above which quick tuning is skipped."""
_load_s = -math.inf
_load_rejection: Rejected | None = None
"""Time of the last load sample and its result."""


def ask_of(session: Session, query: Query) -> Ask:
    """Return the Ask for a query, limited to configs that live tuning may compile."""
    policy = session.policy
    policy = replace(policy, compile_cost=min(policy.compile_cost, policy.live_cost))
    if policy.live_cost <= FAST_COMPILE_COST:  # It would also compile prebuilt kernels with nvcc.
        policy = policy.without_cutlass
    return Ask(query, tuple(session.tables()), policy, installed(query.device.kind))


def pays(
    session: Session, queries: Sequence[Query], ready: bool, missed: Callable[[Query], bool] = lambda query: True
) -> bool:
    """Return whether tuning the GEMMs that `missed`, counted with repetitions, pays off. All belong to one graph and
    device. Stops looking up GEMMs as soon as the result is clear."""
    counts = Counter(query.problem for query in queries)
    by_problem = {query.problem: query for query in queries}
    us: dict[Problem, float] = {}
    for problem, count in counts.most_common():
        if missed(by_problem[problem]):
            us[problem] = count * saved_us(session, by_problem[problem])
            if _repaying(us, session.policy, ready):
                return True
    return False


def chosen(group: Sequence[Decision], ready: bool) -> tuple[list[Decision], Mapping[Problem, Rejected]]:
    """Return (decisions whose GEMMs are worth tuning, in tuning order; by problem, why the others are not tuned).
    `group`: missed GEMMs of one graph and device, at least one, with repetitions."""
    session = group[0].session
    counts = Counter(decision.problem for decision in group)
    queries = {decision.problem: decision.query for decision in group}
    us = {problem: count * saved_us(session, queries[problem]) for problem, count in counts.items()}
    order = {problem: place for place, problem in enumerate(_repaying(us, session.policy, ready))}
    taken = sorted((d for d in group if d.problem in order), key=lambda d: order[d.problem])
    within = f"tuning would not pay off within {limits.calls(session.policy):,} calls"
    left = {
        problem: Rejected(f"{within}: it could save {one:.1f} us per call")
        for problem, one in us.items()
        if problem not in order
    }
    return taken, left


def saved_us(session: Session, query: Query) -> float:
    """Return the microseconds that tuning may save per call of a GEMM; infinite without an estimate."""
    found = _saving(session, query)
    return math.inf if found is None else found.us


def aten_us(session: Session, query: Query) -> float:
    """Return the expected microseconds of a GEMM with ATen; the roofline without an estimate."""
    found = _saving(session, query)
    if found is not None:
        return found.aten_us
    from gemmdb.cost.roofline import roofline_us  # Not before it is needed: enabling imports this module.

    return roofline_us(query.problem, query.device)


def _saving(session: Session, query: Query) -> Saving | None:
    try:
        return saving(ask_of(session, query))
    except Exception as error:
        log.debug("no estimate for %s: %s", query.problem.text, error)
        return None


def _repaying(us: Mapping[Problem, float], policy: Policy, ready: bool) -> list[Problem]:
    return repaying(us, limits.calls(policy), limits.first_s(ready), limits.FURTHER_S)


def load_rejection(device: Device, policy: Policy) -> Rejected | None:
    """Return why other programs leave too few processors to compile the candidates of quick tuning. This process and
    its children do not count. Explicit `live` waits, and so does a CPU, which is tuned only on request.

    13 of 28 programs that were compiled ten at a time on 16 processors tuned GEMMs, and none got a result in time.
    """
    global _load_s, _load_rejection
    if device.kind != "cuda" or limits.is_patient(policy):
        return None
    if monotonic() - _load_s >= limits.LOAD_VALID_S:
        found, processors = load.now(limits.LOAD_SAMPLE_S), detect.cores()
        _load_s, _load_rejection = monotonic(), None
        if found is not None and found.others > BUSY * processors:
            _load_rejection = Rejected(f"{found.text} of {processors}; `gemmdb tune` measures it at a better time")
    return _load_rejection
