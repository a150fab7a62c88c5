"""The post-grad pass: looks up each GEMM, records the decision, and stores it on the node for the lowering.

mm, addmm, int_mm and packed linears keep their operator: the decision is node metadata, which the lowering reads. So a
miss changes nothing, and on a hit every later pass and layout rule still sees the operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from gemmdb.errors import MissError, TableError
from gemmdb.inductor.benchmark import algorithm_ranges as searching_ranges
from gemmdb.inductor.benchmark import algorithms as searching
from gemmdb.inductor.benchmark import confirm as confirming
from gemmdb.inductor.benchmark import horizontal as fusing
from gemmdb.inductor.benchmark import tune as tuning
from gemmdb.inductor.benchmark.step import Ahead
from gemmdb.inductor.decide import deciding, outcome, uncompiled
from gemmdb.inductor.decide.decision import DECISION, Decision
from gemmdb.inductor.decide.session import Session
from gemmdb.inductor.entry.engine_gemms import EngineGemms
from gemmdb.inductor.lower.adapter import state
from gemmdb.inductor.lower.decomposed import DecomposedGemms
from gemmdb.inductor.match import (
    activations,
    convolutions,
    extract,
    fx,
    gemms,
    int4,
    int_mm_scale,
    linears,
    mixed,
    ops,
    routing,
    spelling,
)  # fmt: skip
from gemmdb.inductor.match.fx import Unsupported
from gemmdb.inductor.observe.journal import JOURNAL, Event
from gemmdb.kernels.config import ATEN
from gemmdb.kernels.cublaslt import activation_of
from gemmdb.phases import PHASES

Pairs = Sequence[tuple[Any, Decision]]
"""GEMM nodes with their decisions."""


class PostGradPass:
    """Looks up every GEMM of the final graph, and counts the events."""

    def __init__(self, session: Session, apart: DecomposedGemms, engine: EngineGemms | None = None) -> None:
        self.session, self.apart, self.engine = session, apart, engine or EngineGemms(session, {})
        self.identity, self.frozen = session.identity, bool(session.policy.frozen)
        self.timed = not (self.frozen or session.policy.batch_invariant)
        self.ahead: Ahead = {}

    def __call__(self, graph: Any) -> None:
        self.apart.report()
        if uncompiled.again():  # Nested graphs still have the first attempt's decisions.
            for node in graph.nodes:
                node.meta.pop(DECISION, None)
        try:
            convolutions.rewrite(graph)
        except Exception as error:
            JOURNAL.failure("1 x 1 convolutions", error)
        try:
            routing.rewrite(graph)
        except Exception as error:
            JOURNAL.failure("routing of experts", error)
        found = list(self._decided(graph))
        # All together: tuning compiles their candidates in parallel and starts its process only once.
        missed = [decision for _, decision in found if decision.config is None]
        with PHASES("live"):
            tuned = {decision.entry: decision for decision in tuning.tune(missed)}
        pairs = [(node, tuned.get(decision.entry, decision)) for node, decision in found]
        settled = uncompiled.again() or not self.timed
        for node, decision in pairs if settled else self._timed(pairs):
            try:
                if decision.engine_op:
                    self.engine.settle(node, decision)
                else:
                    self.carry_out(node, _certain(decision))
            except Exception as error:
                JOURNAL.failure("post-grad pass", error)
        absorbing = ops.overload("int_mm_scaled"), ops.overload("mm_activation")
        if any(node.target in absorbing for node in graph.nodes):
            graph.eliminate_dead_code()

    def _timed(self, pairs: Pairs) -> Pairs:
        """Return the GEMMs left after horizontal fusion, with their confirmed decisions; with an algorithm of cuBLASLt
        where that is faster."""
        fusion = fusing.Fusion(self.carry_out, self.ahead)
        confirmation = confirming.Confirmation(self.carry_out, self.ahead)
        search = searching.Search()
        calls = [pair for pair in pairs if pair[1].engine_op]
        pairs = searching_ranges.divided([pair for pair in pairs if not pair[1].engine_op])
        pairs = search.settle(pairs)
        # GEMMs that fusion replaces need no confirmation. The kernels of both steps compile in parallel.
        confirmation.begin(_without(fusion.begin(pairs), pairs))
        pairs = _without(fusion.finish(), pairs)
        confirmation.begin([*pairs, *calls])
        # Meanwhile, the kernels to confirm compile in other processes.
        confirmation.postpone(search.run(pairs))
        decided = search.decide([deciding.charged(decision) for decision in confirmation.decide(pairs)])
        found = [deciding.charged(decision) for decision in confirmation.decide(calls)]
        calls = [(node, decision) for (node, _), decision in zip(calls, found, strict=True)]
        for decision in (*decided, *found):
            JOURNAL.put(decision.entry, decision.event)
        pairs = [(node, decision) for (node, _), decision in zip(pairs, decided, strict=True)]
        # A fused kernel may beat configs that turned out slower than expected.
        return [*_without(fusion.fuse(pairs), pairs), *calls]

    def _decided(self, graph: Any) -> Iterator[tuple[Any, Decision]]:
        """Yield the GEMMs of the graph with their decisions. A miss to be tuned has no config yet."""
        for node in list(graph.nodes):
            try:
                if (call := self._visit_engine(node)) is not None:
                    yield call
                    continue
                if node in self.engine.staying:
                    continue
                decision = self._visit(node)
                if not self.apart.settle(node, decision) and decision is not None:
                    yield node, decision
            except (MissError, TableError):
                raise
            except Exception as error:
                JOURNAL.failure("post-grad pass", error)

    def _visit_engine(self, node: Any) -> tuple[Any, Decision] | None:
        try:
            return self.engine.visit(node)
        except Unsupported as error:
            JOURNAL.enter(Event(str(error), "uncovered"))
            return None

    def _visit(self, node: Any) -> Decision | None:
        if node.op != "call_function":
            return None
        name = gemms.uncovered(node)
        if name is not None:
            JOURNAL.enter(Event(name, "uncovered"))
            return None
        _mark_anew(node)
        try:
            gemm = gemms.read(node)
        except Unsupported as error:
            JOURNAL.enter(Event(f"{node.target}: {error}", "uncovered"))
            return None
        if gemm is None:
            return None
        decision = replace(
            deciding.decide(self.session, gemm.query), reorders=linears.reorders(node),
            respelled=node.meta.get(mixed.RESPELLED, False),
        )  # fmt: skip
        event = decision.event
        if decision.config is None and gemm.guessed:
            # Inductor would time it at its own size hint, and the rows would be stored under ours.
            note = f"not tuned: its sizes are data-dependent; {event.note}"
            decision, event = replace(decision, config=ATEN), replace(event, rung="aten", config=ATEN.text, note=note)
        where = fx.origin(node)
        event = replace(event, module=where.module, source=where.source, symbols=gemm.symbols)
        decision = replace(decision, event=event)
        JOURNAL.enter(decision.event, decision.entry)
        return decision

    def carry_out(self, node: Any, decision: Decision) -> None:
        """Store on a node what the lowering needs, or do what torch would have done with it."""
        if not self.apart.settle(node, decision):
            _leave(node, decision)


def _leave(node: Any, decision: Decision) -> None:
    """Store a decision on the node that the lowering will see: this one, or one that covers more of the graph."""
    if node.target is ops.overload("engine_mm"):
        node.meta[DECISION] = decision
        return
    own = (ops.overload("mixed_mm"), ops.overload("int4_mm"), ops.overload("int_mm_scaled"))  # Always lowered by us.
    if int_mm_scale.scales_in_kernel(decision.config, decision.problem):
        found = int_mm_scale.absorb(node)
        if found is not None:
            found.meta[DECISION] = decision
            return
        if decision.config is not None and decision.config.backend == "cutlass":
            outcome.refuse(decision, "the scale is not a tensor over the columns or rows")
            decision = replace(decision, config=ATEN, refused=True)
    if decision.config is not None and (activation := activation_of(decision.config)):
        found = activations.absorb(node, activation)
        if found is not None:
            found.meta[DECISION] = decision
            return
        outcome.refuse(decision, f"its epilogue is no longer {activation} alone")
        decision = replace(decision, config=ATEN, refused=True)
    alone = decision.config == ATEN and not decision.branches and not state.autotuning()
    if alone and node.target in own[:2] and spelling.restore_addmm(node):
        return
    if node.target is linears.TILED_MM:
        if decision.branches or decision.config not in (None, ATEN):
            linears.absorb_tiled_int4(node).meta[DECISION] = decision
    elif decision.unanswered and node.target not in own:
        outcome.left_alone(decision)
    # Keep Inductor's default, except where Inductor would then search, and for our own operators.
    elif decision.branches or decision.config != ATEN or state.autotuning() or node.target in own[:2]:
        node.meta[DECISION] = decision


def _certain(decision: Decision) -> Decision:
    """Return a decision with ATen in place of a config that this compile had to time, and did not."""
    served = decision.branches or decision.config not in (None, ATEN)  # With branches, the config is that at the hint.
    if not decision.reorders or decision.timed_here or not served:
        return decision
    outcome.refuse(decision, "it was not timed with the activation's columns in order")
    return replace(decision, config=ATEN, branches=(), refused=True)


def _without(gone: set[Any], pairs: Pairs) -> Pairs:
    return [(node, decision) for node, decision in pairs if node not in gone]


def _mark_anew(node: Any) -> None:
    """Mark an addmm whose weight is cast: in torch 2.11, Inductor fuses a GEMM and an add into it and drops their
    metadata."""
    if node.target is torch.ops.aten.addmm.default and extract.WEIGHT_MARK not in node.meta.get("custom", {}):
        found = mixed.find(node) or int4.find(node)
        if found is not None:
            found.leave_mark(found.weight.op == "get_attr")
