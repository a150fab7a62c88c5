"""One group of products, compiled as one kernel and as they are without it, and timed beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from gemmdb.hit import Hit
from gemmdb.inductor.benchmark import samples as on_gpu
from gemmdb.inductor.benchmark import subgraph as cutting
from gemmdb.inductor.benchmark.ahead import Steer
from gemmdb.inductor.benchmark.confirm_job import Unconfirmed, only
from gemmdb.inductor.benchmark.trial import noisy
from gemmdb.inductor.decide.decision import Decision, Fused
from gemmdb.inductor.lower.adapter import emission
from gemmdb.inductor.match.horizontal import Group, rewrite
from gemmdb.inductor.match.horizontal_members import OWN_FIELDS
from gemmdb.inductor.observe.journal import JOURNAL
from gemmdb.kernels.config import Config
from gemmdb.kernels.triton import ZEROING_US, counts_arrivals
from gemmdb.table.stats import times


@dataclass(frozen=True)
class Timed:
    """Microseconds of the products as one kernel and as they are without it, with the work that follows each."""

    us: float
    apart_us: float


@dataclass
class Trial:
    """One or more groups of a graph with the same code. `hit`: the kernel. `apart`: what runs without it.
    `saved_us`: microseconds that all of them are expected to save in one call of the graph."""

    piece: cutting.Piece
    groups: list[Group[Decision]]
    hit: Hit
    apart: tuple[Config | None, ...]
    saved_us: float = 0.0
    begun: tuple[emission.Begun, ...] = ()

    def __post_init__(self) -> None:
        # While the graph is as it was.
        self.key: object = (self.piece.text, self.hit.config, self.apart)
        """What two trials have in common that say the same."""

    @property
    def _zeroing_us(self) -> float:
        """The share of one group in the zeroing of the graph's counters, which the trial does not include, if the graph
        may have none without the kernel."""
        apart = any(config is not None and counts_arrivals(config) for config in self.apart)
        return ZEROING_US / len(self.groups) if counts_arrivals(self.hit.config) and not apart else 0.0

    @property
    def text(self) -> str:
        """The products and the kernel, for a log."""
        group = self.groups[0]
        return f"{group.query.problem.head} ({'+'.join(map(str, group.widths))}) as {self.hit.config.text}"

    def begin(self, steer: Steer) -> None:
        """Generate both codes and begin to compile them. Raises Unconfirmed where Inductor does not carry the kernel
        out, and what Inductor raises."""
        self.begun = tuple(code.begin() for code in (self._apart(steer), self._fused()))

    def finish(self) -> Timed:
        """The times, once the code is compiled. Raises Unconfirmed where the trial says nothing or the results differ,
        and what compiling raised."""
        apart, fused = (begun.function() for begun in self.begun)
        fakes, device = self.piece.fakes, self.piece.device
        with emission.real_tensors():
            if short := on_gpu.shortage(fakes, self.piece.outputs, device):
                raise Unconfirmed(short)
            found = on_gpu.trial((apart, fused), fakes, self.piece.warm, device)
        if found.differs:
            raise Unconfirmed("the results differ")
        if noisy(found.aten, found.ours):
            raise Unconfirmed("the times vary too much")
        us = times(found.ours, found.aten).median_us + self._zeroing_us
        return Timed(us, times(found.aten, found.aten).median_us)

    def _apart(self, steer: Steer) -> emission.Code:
        graph, new = self.piece.copies()
        with JOURNAL.aside(), emission.undisturbed():
            for member in self.groups[0].members:
                decision = _alone(member.decision)
                JOURNAL.enter(decision.event, decision.entry)
                steer(new[member.node], decision)
            return _generated(graph, self.piece.fakes)

    def _fused(self) -> emission.Code:
        graph, new = self.piece.copies()
        group = _copied(self.groups[0], new)
        with JOURNAL.aside(), emission.undisturbed():
            for member in group.members:
                JOURNAL.enter(member.decision.event, member.decision.entry)
            rewrite(graph.graph, group, fused(group, self.hit))
            code = _generated(graph, self.piece.fakes)
            refused = [event.note for event in JOURNAL.pending() if event.note]
        if refused:
            raise Unconfirmed(refused[0])
        return code


def fused(group: Group[Decision], hit: Hit) -> Fused:
    """What the lowering carries out for a group."""
    members = tuple(member.decision for member in group.members)
    whole = replace(members[0], query=group.query, config=hit.config, branches=(), entry=object())
    return Fused(whole, members)


def _generated(graph: torch.fx.GraphModule, fakes: Sequence[Any]) -> emission.Code:
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return emission.generate(graph, fakes)


def _copied(group: Group[Decision], new: Any) -> Group[Decision]:
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


def _alone(decision: Decision) -> Decision:
    """The decision for a copy of its product: with a session that says the same to whoever asks again."""
    config = decision.config
    assert config is not None
    return replace(decision, session=only(config, decision.session), entry=object())
