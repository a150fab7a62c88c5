"""Horizontal fusion: fuses groups of GEMMs into one kernel where a trial in the program shows a speedup. Rewrites the
graph."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gemmdb.hit import Hit
from gemmdb.inductor.benchmark import limits, rules
from gemmdb.inductor.benchmark import subgraph as cutting
from gemmdb.inductor.benchmark.limits import BUDGET, TrialLimit
from gemmdb.inductor.benchmark.step import Ahead, CarryOut, Job, Step, fixed, generated
from gemmdb.inductor.benchmark.subgraph import Piece
from gemmdb.inductor.benchmark.trial import Untimed, noisy
from gemmdb.inductor.decide.decision import Decision, Fused
from gemmdb.inductor.decide.session import Session
from gemmdb.inductor.lower.adapter import emission, state
from gemmdb.inductor.match import horizontal as groups
from gemmdb.inductor.match.horizontal import Group, rewrite
from gemmdb.inductor.match.horizontal_members import OWN_FIELDS, Member
from gemmdb.inductor.observe.journal import JOURNAL, Event
from gemmdb.kernels.config import ATEN
from gemmdb.kernels.triton import ZEROING_US, counts_arrivals, parts
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.phases import PHASES
from gemmdb.table.stats import times

log = logging.getLogger("gemmdb")
UNKNOWN_US = 3.0
"""Assumed time of a GEMM whose time is unknown."""
PROMISING = 0.97
"""Maximum expected time of the fused kernel, relative to the separate GEMMs, that is worth a trial."""
MAX_KNOWN = 256
_KNOWN: dict[object, Timed | None] = {}
"""Results of this process's trials, by compiled code: many programs compile their layers one by one. None: no times."""


class Fusion(Step):
    """Horizontal fusion of one graph. `jobs`: trials that were started, or whose result is known, and are not finished.
    No group is tried twice. Never raises."""

    name = "horizontal fusion"

    def __init__(self, carry_out: CarryOut, ahead: Ahead | None = None) -> None:
        super().__init__(carry_out, ahead)
        self._tried: set[Any] = set()
        self._numbers: dict[Any, int] = {}
        self._kernel = functools.cache(_kernel)  # Layers of a model share the lookup, which takes milliseconds.

    def fuse(self, pairs: Sequence[tuple[Any, Decision]]) -> set[Any]:
        """Rewrite the graph where one kernel is faster than the GEMMs of a group, and return the removed nodes.
        `pairs`: the GEMMs of the graph with their decisions. An unconfirmed decision counts as ATen."""
        self.begin(pairs)
        return self.finish()

    def begin(self, pairs: Sequence[tuple[Any, Decision]]) -> set[Any]:
        """Start compiling one kernel for each promising group, and return the nodes that `finish` may replace."""
        self.jobs = []
        policy = pairs[0][1].session.policy if pairs else None
        if policy is None or not policy.horizontal or not policy.confirm:
            return set()
        try:
            places = {node: place for place, node in enumerate(pairs[0][0].graph.nodes)}
            # GEMMs that are removed by the second pass still lie between others.
            self._numbers = self._numbers or groups.numbered(pairs, places)
            found = groups.find(pairs, self._numbers)
            found = [one for one in found if _allowed(one) and self._tried.isdisjoint(one.nodes)]
            if found:
                with BUDGET.spending():
                    self._limit = TrialLimit(policy)
                    for job in self._promising(found, places):
                        if job.key in _KNOWN or self._begin_job(job) is None:
                            self.jobs.append(job)
        except Exception as error:
            JOURNAL.failure(self.name, error)
        return {node for job in self.jobs for group in job.groups for node in group.nodes}

    def finish(self) -> set[Any]:
        """Rewrite the graph where one kernel is faster, and return the removed nodes."""
        gone: set[Any] = set()
        if self.jobs:
            try:
                with BUDGET.spending():
                    self._finish(gone)
            except Exception as error:
                JOURNAL.failure(self.name, error)
        self.jobs = []
        return gone

    def _finish(self, gone: set[Any]) -> None:
        assert self._limit is not None
        start = limits.now()
        for job in self.jobs:
            if job.key not in _KNOWN and self._wait(job, start) is None:
                _remember(job, self._attempt(job.finish))
            self._tried.update(node for group in job.groups for node in group.nodes)
        for job in self.jobs:  # All trials are over: they read the graph as it was.
            timed = _KNOWN.get(job.key)
            if timed is not None and _pays(timed, job):
                for group in job.groups:
                    gone |= _rewrite(group, job.hit, timed)
        count = sum(len(group.members) for job in self.jobs for group in job.groups)
        log.info("horizontal fusion: %d of %d GEMMs in %.2f s", len(gone), count, self._limit.spent_s())

    def _promising(self, found: Sequence[Group[Decision]], places: Mapping[Any, int]) -> list[HorizontalJob]:
        """Return the jobs of promising groups, largest saving first."""
        jobs: dict[object, HorizontalJob] = {}
        for group in found:
            one = self._attempt(self._job, group, places)
            if isinstance(one, HorizontalJob):
                job = jobs.setdefault(one.key, one)
                job.groups.append(_cautious(group))
                job.saved_us += _expected_us(group) - one.hit.expected_us
        worth = (job for job in jobs.values() if limits.repays(job.saved_us, job.policy))
        return sorted(worth, key=lambda job: -job.saved_us)

    def _job(self, group: Group[Decision], places: Mapping[Any, int]) -> HorizontalJob | None:
        """Return the job of a group; None if no kernel is expected to beat the current decisions."""
        query = group.query
        hit = self._kernel(group.members[0].decision.session, query.problem, query.device, group.widths)
        if hit is None or hit.expected_us > PROMISING * _expected_us(group):
            return None
        group.unify()  # The piece reads the activation once, and so may the graph.
        piece = cutting.cut_all([(one.node, one.decision.problem) for one in group.members], places)
        return HorizontalJob(piece, _cautious(group), hit)


def _allowed(group: Group[Decision]) -> bool:
    policy, query = group.members[0].decision.session.policy, group.query
    if rules.confirm_rejection(query, policy) or rules.device_rejection(query.device):
        return False
    # A trial would wait for nvcc, or for a search.
    decisions = [member.decision for member in group.members]
    slow = any(rules.compile_rejection(one.config, one.query, policy) for one in decisions if one.config is not None)
    return not slow and not (state.autotuning() and any(one.unanswered for one in decisions))


def _remember(job: HorizontalJob, found: Any) -> None:
    timed = found if isinstance(found, Timed) else None
    log.debug("horizontal fusion of %s: %s", job.text, found)
    if len(_KNOWN) >= MAX_KNOWN:
        del _KNOWN[next(iter(_KNOWN))]
    _KNOWN[job.key] = timed


def _pays(timed: Timed, job: HorizontalJob) -> bool:
    return timed.apart_us / timed.us - 1 >= job.policy.min_gain


def _cautious(group: Group[Decision]) -> Group[Decision]:
    """Return the group with ATen for each unconfirmed GEMM. A trial against ATen shows whether the fused kernel is
    faster than default mode, so these GEMMs need no confirmation first."""

    def certain(decision: Decision) -> Decision:
        if not rules.in_doubt(decision):
            return decision
        return replace(decision, config=ATEN, event=decision.event.refused(""))

    return Group(tuple(replace(one, decision=certain(one.decision)) for one in group.members))


@PHASES("lookup")
def _kernel(session: Session, problem: Problem, device: Device, widths: tuple[int, ...]) -> Hit | None:
    """Return the best kernel for weights of these widths, with its expected time."""
    return session.best_kernel(Query(problem, device), lambda config: parts.rejection(config, widths) is None)


def _expected_us(group: Group[Decision]) -> float:
    """Return the expected microseconds of the separate GEMMs, as decided."""
    return sum(member.decision.event.expected_us or UNKNOWN_US for member in group.members)


def _rewrite(group: Group[Decision], hit: Hit, timed: Timed) -> set[Any]:
    rewrite(group.a.graph, group, fused(group, hit))
    for member in group.members:
        JOURNAL.put(member.decision.entry, _event(member, group, hit, timed))
    return set(group.nodes)


def _event(member: Member[Decision], group: Group[Decision], hit: Hit, timed: Timed) -> Event:
    """Return the journal event of one GEMM: its own expected time, scaled by the trial's result for the group. Without
    an expected time, use its share of the columns. No table has measured the kernel with several weights, so the rung
    is never `exact`."""
    old, faster, count = member.decision.event, timed.apart_us / timed.us, len(group.members)
    old_us, old_speedup = old.shown
    us = timed.us * member.width / sum(group.widths) if old_us is None else old_us / faster
    facts = {"products": count, "us": timed.us, "apart_us": timed.apart_us, "instead_of": old.config}
    speedup = faster if old_speedup is None and old.config == ATEN.text else old_speedup and old_speedup * faster
    return replace(
        old, rung="near" if hit.rung == "exact" else hit.rung, config=hit.config.text, table=hit.table,
        expected_us=us, speedup=speedup, disturbed=False,
        note=f"one kernel for {count} GEMMs", evidence={"horizontal": facts},
    )  # fmt: skip


@dataclass(frozen=True)
class Timed:
    """Microseconds of the GEMMs as one kernel and as separate kernels, including the operators that follow each."""

    us: float
    apart_us: float


class HorizontalJob(Job):
    """One or more groups of a graph with the same code. `hit`: the fused kernel. `apart`: the configs of the separate
    GEMMs."""

    def __init__(self, piece: Piece, group: Group[Decision], hit: Hit) -> None:
        self.hit, self.groups = hit, list[Group[Decision]]()
        self.apart = tuple(member.decision.config for member in group.members)
        super().__init__(piece, (piece.text, hit.config, self.apart), group.members[0].decision.session.policy)

    @property
    def text(self) -> str:
        """The GEMMs and the kernel, for the log."""
        group = self.groups[0]
        return f"{group.query.problem.head} ({'+'.join(map(str, group.widths))}) as {self.hit.config.text}"

    def codes(self, carry_out: CarryOut) -> tuple[emission.Code, emission.Code]:
        """Return the code of the separate GEMMs and of the fused kernel."""
        return self._apart(carry_out), self._fused()

    def finish(self) -> Timed:
        """Return the times once the code is compiled. Also raises Untimed if the results differ."""
        found = self.time()
        if found.differs:
            raise Untimed("the results differ")
        if noisy(found.aten, found.ours):
            raise Untimed("its times vary too much")
        # One group's share of zeroing the graph's counters, which the trial does not include. Without the kernel, the
        # graph may have none.
        counted = any(config is not None and counts_arrivals(config) for config in self.apart)
        zeroing_us = ZEROING_US / len(self.groups) if counts_arrivals(self.hit.config) and not counted else 0.0
        us = times(found.ours, found.aten).median_us + zeroing_us
        return Timed(us, times(found.aten, found.aten).median_us)

    def _apart(self, carry_out: CarryOut) -> emission.Code:
        graph, new = self.piece.copies()
        with JOURNAL.aside(), emission.undisturbed():
            for member in self.groups[0].members:
                assert member.decision.config is not None
                decision = fixed(member.decision, member.decision.config)
                JOURNAL.enter(decision.event, decision.entry)
                carry_out(new[member.node], decision)
            return generated(graph, self.piece.fakes)

    def _fused(self) -> emission.Code:
        graph, new = self.piece.copies()
        group = _copied(self.groups[0], new)
        with JOURNAL.aside(), emission.undisturbed():
            for member in group.members:
                JOURNAL.enter(member.decision.event, member.decision.entry)
            rewrite(graph.graph, group, fused(group, self.hit))
            code = generated(graph, self.piece.fakes)
            refused = [event.note for event in JOURNAL.pending() if event.note]
        if refused:
            raise Untimed(refused[0])
        return code


def fused(group: Group[Decision], hit: Hit) -> Fused:
    """Return the fused decision for the lowering."""
    members = tuple(member.decision for member in group.members)
    whole = replace(members[0], query=group.query, config=hit.config, branches=(), entry=object())
    return Fused(whole, members)


def _copied(group: Group[Decision], new: Mapping[Any, Any]) -> Group[Decision]:
    """Return the group in a copy of its graph, with events that have no notes yet."""
    return Group(
        tuple(
            replace(
                one, node=new[one.node],
                **{name: new[node] for name, node in vars(one).items() if name in OWN_FIELDS and node is not None},
                decision=replace(one.decision, event=replace(one.decision.event, note=""), entry=object()),
            )
            for one in group.members
        )
    )  # fmt: skip
