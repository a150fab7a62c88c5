"""Decides which groups of a graph become one kernel, by trials in the program, and rewrites the graph."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gemmdb.hit import Hit
from gemmdb.inductor.benchmark import confirm_rules as rules
from gemmdb.inductor.benchmark import subgraph as cutting
from gemmdb.inductor.benchmark.ahead import Ahead, Steer, ready
from gemmdb.inductor.benchmark.budget import BUDGET
from gemmdb.inductor.benchmark.confirm_job import Unconfirmed
from gemmdb.inductor.benchmark.horizontal_trial import Timed, Trial, fused
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.decide.session import Session
from gemmdb.inductor.lower.adapter import state
from gemmdb.inductor.match import horizontal as groups
from gemmdb.inductor.match.horizontal import Group, rewrite
from gemmdb.inductor.match.horizontal_members import Member
from gemmdb.inductor.observe.journal import JOURNAL, Event
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.triton import parts
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.phases import PHASES
from gemmdb.settings import Policy

Kernel = Callable[[Session, Problem, Device, tuple[int, ...]], Hit | None]
log = logging.getLogger("gemmdb")
now = time.monotonic
LEAST_US = 3.0
"""What a product takes of whose time nothing is known."""
PROMISING = 0.97
"""The largest expected time of the one kernel, relative to the products', that is worth a trial."""
COMPILING = 0.5
"""The share of the allowed time after which nothing more is begun."""
MOST_KNOWN = 256
_KNOWN: dict[object, Timed | None] = {}
"""What trials of this process said, by what was compiled: many programs compile their layers one by one. None: there
are no times."""


class Fusion:
    """Horizontal fusion of one graph. No group is tried twice. Nothing in it raises."""

    def __init__(self, steer: Steer, ahead: Ahead | None = None) -> None:
        self._steer, self._ahead = steer, ahead or Ahead()
        self._tried: set[Any] = set()
        self._numbers: dict[Any, int] = {}
        self._kernel = functools.cache(_kernel)  # Layers of a model ask for the same one, which takes milliseconds.
        self._start, self._allowed_s = 0.0, 0.0
        self.trials: list[Trial] = []
        """What was begun, or is known, and not finished."""

    def fuse(self, pairs: Sequence[tuple[Any, Decision]]) -> set[Any]:
        """Rewrite the graph where one kernel is faster than the products of a group; returns the nodes that are gone.
        `pairs`: the products of the graph with their decisions. One that is in doubt counts as ATen."""
        self.begin(pairs)
        return self.finish()

    def begin(self, pairs: Sequence[tuple[Any, Decision]]) -> set[Any]:
        """Begin to compile one kernel for each promising group; returns the nodes that `finish` may replace."""
        self.trials = []
        if not pairs or not _wanted(pairs[0][1].session.policy):
            return set()
        try:
            places = {node: place for place, node in enumerate(pairs[0][0].graph.nodes)}
            # Products that are gone by the second time still lie between others.
            self._numbers = self._numbers or groups.numbered(pairs, places)
            all_found = groups.find(pairs, self._numbers)
            found = [one for one in all_found if _allowed(one) and self._tried.isdisjoint(one.nodes)]
            if found:
                with BUDGET.spending():
                    self._begin(found, places)
        except Exception as error:
            JOURNAL.failure("horizontal fusion", error)
        return {node for trial in self.trials for group in trial.groups for node in group.nodes}

    def finish(self) -> set[Any]:
        """Rewrite the graph where one kernel is faster; returns the nodes that are gone."""
        gone: set[Any] = set()
        if self.trials:
            try:
                with BUDGET.spending():
                    self._finish(gone)
            except Exception as error:
                JOURNAL.failure("horizontal fusion", error)
        self.trials = []
        return gone

    def _begin(self, found: Sequence[Group[Decision]], places: dict[Any, int]) -> None:
        policy = found[0].members[0].decision.session.policy
        self._start, self._allowed_s = now(), min(policy.confirm_s, BUDGET.left_s(policy))
        for trial in self._promising(found, places):
            if trial.key in _KNOWN or self._begins(trial):
                self.trials.append(trial)

    def _begins(self, trial: Trial) -> bool:
        late = now() > self._start + COMPILING * self._allowed_s
        return not late and _done(self._ahead.begin, trial, self._steer) is None

    def _finish(self, gone: set[Any]) -> None:
        start = now()
        for trial in self.trials:
            left_s = self._start + self._allowed_s - now()
            patience_s = rules.patience_s(trial.saved_us, _policy(trial)) + start - now()
            if trial.key not in _KNOWN and left_s >= 0 and ready(trial, min(left_s, patience_s)):
                _remember(trial, _done(trial.finish))
            self._tried.update(node for group in trial.groups for node in group.nodes)
        count = sum(len(group.members) for trial in self.trials for group in trial.groups)
        for trial in self.trials:  # All trials are over: they read the graph as it was.
            timed = _KNOWN.get(trial.key)
            if timed is not None and _pays(timed, trial):
                for group in trial.groups:
                    gone |= _carry_out(group, trial.hit, timed)
        log.info("horizontal fusion: %d of %d products in %.2f s", len(gone), count, now() - self._start)

    def _promising(self, found: Sequence[Group[Decision]], places: dict[Any, int]) -> list[Trial]:
        """The trials of promising groups, those that save most first."""
        trials: dict[object, Trial] = {}
        for group in found:
            one = _done(_trial, group, self._kernel, places)
            if isinstance(one, Trial):
                trial = trials.setdefault(one.key, one)
                trial.groups.append(_cautious(group))
                trial.saved_us += _expected_us(group) - one.hit.expected_us
        worth = (trial for trial in trials.values() if rules.repays(trial.saved_us, _policy(trial)))
        return sorted(worth, key=lambda trial: -trial.saved_us)


def _wanted(policy: Policy) -> bool:
    return policy.horizontal and bool(policy.confirm)


def _allowed(group: Group[Decision]) -> bool:
    policy, query = group.members[0].decision.session.policy, group.query
    if rules.objection(query, policy) or rules.hindrance(query.device):
        return False
    # A trial would wait for nvcc, or for a search.
    decisions = [member.decision for member in group.members]
    slow = any(rules.too_slow(one.config, one.query, policy) for one in decisions if one.config is not None)
    return not slow and not (state.autotuning() and any(one.unanswered for one in decisions))


def _remember(trial: Trial, found: Any) -> None:
    timed = found if isinstance(found, Timed) else None
    log.debug("horizontal fusion of %s: %s", trial.text, timed or "no times")
    if len(_KNOWN) >= MOST_KNOWN:
        del _KNOWN[next(iter(_KNOWN))]
    _KNOWN[trial.key] = timed


def _done(step: Any, *args: Any) -> Any:
    """The result of a step of a trial; the error instead of raising it."""
    try:
        return step(*args)
    except (Unconfirmed, cutting.Uncut) as error:
        log.debug("horizontal fusion: %s", error)
        return error
    except Exception as error:
        log.debug("horizontal fusion", exc_info=True)
        JOURNAL.error(f"horizontal fusion: {type(error).__name__}: {error}")
        return error


def _trial(group: Group[Decision], kernel: Kernel, places: dict[Any, int]) -> Trial | None:
    """The trial of a group; None if no kernel is expected to gain over what was decided."""
    query = group.query
    hit = kernel(group.members[0].decision.session, query.problem, query.device, group.widths)
    if hit is None or hit.expected_us > PROMISING * _expected_us(group):
        return None
    group.unify()  # The piece reads the activation once, and the graph may do so, too.
    piece = cutting.cut_all([(one.node, one.decision.problem) for one in group.members], places)
    return Trial(piece, [], hit, tuple(member.decision.config for member in _cautious(group).members))


def _cautious(group: Group[Decision]) -> Group[Decision]:
    """The group with ATen for each product whose answer is in doubt. A trial beside ATen says whether the one kernel is
    faster than default mode, so those answers need not be confirmed first."""
    return Group(tuple(replace(one, decision=_sure(one.decision)) for one in group.members))


def _sure(decision: Decision) -> Decision:
    if not rules.in_doubt(decision):
        return decision
    return replace(decision, config=ATEN, event=decision.event.refused(""))


@PHASES("lookup")
def _kernel(session: Session, problem: Problem, device: Device, widths: tuple[int, ...]) -> Hit | None:
    """The best kernel that takes weights of these widths, with its expected time."""

    def allowed(config: Config) -> bool:
        return parts.rejection(config, widths) is None

    return session.best_kernel(Query(problem, device), allowed)


def _expected_us(group: Group[Decision]) -> float:
    """The microseconds that the products take, as decided."""
    return sum(member.decision.event.expected_us or LEAST_US for member in group.members)


def _pays(timed: Timed, trial: Trial) -> bool:
    return timed.apart_us / timed.us - 1 >= _policy(trial).min_gain


def _policy(trial: Trial) -> Policy:
    return trial.groups[0].members[0].decision.session.policy


def _carry_out(group: Group[Decision], hit: Hit, timed: Timed) -> set[Any]:
    rewrite(group.a.graph, group, fused(group, hit))
    for member in group.members:
        event = _event(member, group, hit, timed)
        JOURNAL.put(member.decision.entry, event)
    return {member.node for member in group.members}


def _event(member: Member[Decision], group: Group[Decision], hit: Hit, timed: Timed) -> Event:
    """What the journal says of one product: as expected by itself, times what the trial says of all together. Where
    nothing was expected, it is its share of the columns. No table has measured the kernel with several weights, so the
    rung is never `exact`."""
    old, faster, count = member.decision.event, timed.apart_us / timed.us, len(group.members)
    us = timed.us * member.width / sum(group.widths) if old.expected_us is None else old.expected_us / faster
    facts = {"products": count, "us": timed.us, "apart_us": timed.apart_us, "instead_of": old.config}
    speedup = faster if old.speedup is None and old.config == ATEN.text else old.speedup and old.speedup * faster
    return replace(
        old, rung="near" if hit.rung == "exact" else hit.rung, config=hit.config.text, table=hit.table,
        expected_us=us, speedup=speedup,
        note=f"one kernel for {count} products", evidence={"horizontal": facts},
    )  # fmt: skip
