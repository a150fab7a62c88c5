"""One group of GEMMs, compiled as one kernel and as they are without it, and timed beside each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gemmdb.hit import Hit
from gemmdb.inductor.benchmark.step import CarryOut, Job, fixed, generated
from gemmdb.inductor.benchmark.subgraph import Piece
from gemmdb.inductor.benchmark.trial import Untimed, noisy
from gemmdb.inductor.decide.decision import Decision, Fused
from gemmdb.inductor.lower.adapter import emission
from gemmdb.inductor.match.horizontal import Group, rewrite
from gemmdb.inductor.match.horizontal_members import OWN_FIELDS
from gemmdb.inductor.observe.journal import JOURNAL
from gemmdb.kernels.triton import ZEROING_US, counts_arrivals
from gemmdb.table.stats import times


@dataclass(frozen=True)
class Timed:
    """Microseconds of the GEMMs as one kernel and as they are without it, with the work that follows each."""

    us: float
    apart_us: float


class HorizontalJob(Job):
    """One or more groups of a graph with the same code. `hit`: the kernel. `apart`: the configs that run without it."""

    def __init__(self, piece: Piece, group: Group[Decision], hit: Hit) -> None:
        self.hit, self.groups = hit, list[Group[Decision]]()
        self.apart = tuple(member.decision.config for member in group.members)
        super().__init__(piece, (piece.text, hit.config, self.apart), group.members[0].decision.session.policy)

    @property
    def text(self) -> str:
        """The GEMMs and the kernel, for a log."""
        group = self.groups[0]
        return f"{group.query.problem.head} ({'+'.join(map(str, group.widths))}) as {self.hit.config.text}"

    def codes(self, carry_out: CarryOut) -> tuple[emission.Code, emission.Code]:
        """The code of the GEMMs one by one, and of the kernel."""
        return self._apart(carry_out), self._fused()

    def finish(self) -> Timed:
        """The times, once the code is compiled. Raises Untimed also where the results differ."""
        found = self.time()
        if found.differs:
            raise Untimed("the results differ")
        if noisy(found.aten, found.ours):
            raise Untimed("its times vary too much")
        # The share of one group in the zeroing of the graph's counters, which the trial does not include, if the graph
        # may have none without the kernel.
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
    """What the lowering carries out for a group."""
    members = tuple(member.decision for member in group.members)
    whole = replace(members[0], query=group.query, config=hit.config, branches=(), entry=object())
    return Fused(whole, members)


def _copied(group: Group[Decision], new: Mapping[Any, Any]) -> Group[Decision]:
    """The group in a copy of its graph, with decisions whose events start without a note."""
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
