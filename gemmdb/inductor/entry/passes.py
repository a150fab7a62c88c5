"""The two graph passes: they look each product up, write down the answer, and leave it on the node for the lowering.

mm, addmm, int_mm and packed linears keep their operator: the answer is node metadata, which the lowering reads. So a
miss changes nothing at all, and a hit stays visible to every later pass and layout rule that names the operator. Only
an int8-weight product that hits is rewritten, at the joint stage.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from gemmdb.errors import MissError, TableError
from gemmdb.hit import Hit
from gemmdb.inductor.benchmark import confirming, tuning
from gemmdb.inductor.benchmark.ahead import Ahead
from gemmdb.inductor.decide import deciding, legality, outcome, uncompiled
from gemmdb.inductor.decide import horizontal as fusing
from gemmdb.inductor.decide.decision import DECISION, Decision
from gemmdb.inductor.entry import early
from gemmdb.inductor.entry.session import Session
from gemmdb.inductor.lower.adapter import state
from gemmdb.inductor.match import (
    convolutions,
    int4,
    int4_products,
    int_mm_scale,
    mixed,
    ops,
    origin,
    products,
    reading,
)
from gemmdb.inductor.match.extract import Unsupported
from gemmdb.inductor.match.taken_apart import TakenApart
from gemmdb.inductor.observe.journal import JOURNAL, Event
from gemmdb.inductor.observe.phases import PHASES
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Query

log = logging.getLogger("gemmdb")


class JointPass:
    """Finds int8-weight products; rewrites those whose verdict Inductor would not carry out by itself."""

    def __init__(self, session: Session, later: PostGradPass) -> None:
        self.session = session
        self.identity = session.identity
        self.later = later
        self.apart = later.apart
        self.whole = later.apart.whole

    def __call__(self, graph: Any) -> None:
        frozen = state.frozen_parameters()
        constants = {node for i, node in enumerate(graph.find_nodes(op="placeholder")) if i in frozen}
        rewritten, queries = False, list[Query]()
        for node in list(graph.nodes):
            try:
                found = mixed.find(node) or int4.find(node)
                if self.apart.concerns(node):
                    rewritten |= self._settle(graph, node, found, constants)
                elif found is not None:
                    rewritten |= self._visit(graph, found, _is_constant(found.weight, constants), queries)
                else:
                    self.apart.mark(node)
                    if self.session.policy.on_miss == "live":
                        self._look_ahead(node, queries)
            except (MissError, TableError):
                raise
            except Exception as error:
                JOURNAL.failure("joint pass", error)
        self._expect(queries)
        if rewritten:
            graph.eliminate_dead_code()
        early.begin(graph, self.session, self.later.carry_out, self.later.ahead)

    def _settle(self, graph: Any, node: Any, found: mixed.Mixed | int4.Int4 | None, constants: set[Any]) -> bool:
        """Keep a product that torch takes apart if its answer is a kernel. Returns whether it was rewritten."""
        wanted = False
        try:
            constant = _is_constant(found.weight if found else self.apart.weight(node), constants)
            if found is not None:
                found.leave_mark(constant)
            wanted = self.apart.wanted(node, constant)
        finally:
            if not wanted:
                self.apart.decompose(node)
        if wanted and found is not None:
            found.rewrite(graph)
        return wanted and found is not None

    def _visit(self, graph: Any, found: mixed.Mixed | int4.Int4, constant: bool, queries: list[Query]) -> bool:
        try:
            found.leave_mark(constant)
            product = products.product(found.node)
        except Unsupported:
            return False
        if product is None:
            return False
        hit = deciding.ask(self.session, product.query)
        if hit is None:
            # Whatever is measured to be the best must still be possible then.
            if not deciding.to_tune(self.session, product.query):
                return False
            queries.append(product.query)
        elif _stays(hit, product.query):
            return False
        found.rewrite(graph)
        return True

    def _look_ahead(self, node: Any, queries: list[Query]) -> None:
        """Note the query of a product that would be tuned live if it missed."""
        try:
            product = products.product(node) if node.op == "call_function" else None
            if product and deciding.to_tune(self.session, product.query):
                queries.append(product.query)
        except Exception as error:
            # The post-grad pass will meet it, and say so, if it is still there then.
            log.debug("looking ahead: %s", error)

    def _expect(self, queries: list[Query]) -> None:
        """Tell live tuning of the products that miss, as early as they are known."""
        try:
            tuning.expect(self.session, queries)
        except Exception as error:
            log.debug("looking ahead: %s", error)


class PostGradPass:
    """Looks every product of the final graph up; this is where events are counted."""

    def __init__(self, session: Session, apart: TakenApart) -> None:
        self.session = session
        self.identity = session.identity
        self.apart = apart
        self.ahead = Ahead()

    def __call__(self, graph: Any) -> None:
        self.apart.report()
        if uncompiled.again():  # Nested graphs still have what the first attempt decided.
            for node in graph.nodes:
                node.meta.pop(DECISION, None)
        try:
            convolutions.rewrite(graph)
        except Exception as error:
            JOURNAL.failure("1 x 1 convolutions", error)
        found = list(self._products(graph))
        # All at once: tuning compiles for them in parallel, and pays for its start-up once.
        missed = [decision for _, decision in found if decision.config is None]
        with PHASES("live"):
            tuned = {decision.entry: decision for decision in tuning.tune(missed)}
        pairs = [(node, tuned.get(decision.entry, decision)) for node, decision in found]
        for node, decision in self._settled(pairs):
            try:
                self.carry_out(node, decision)
            except Exception as error:
                JOURNAL.failure("post-grad pass", error)
        if any(node.target is ops.register_scaled() for node in graph.nodes):
            graph.eliminate_dead_code()

    def _settled(self, pairs: Sequence[tuple[Any, Decision]]) -> Sequence[tuple[Any, Decision]]:
        """The products that stay by themselves, with what they become."""
        if uncompiled.again():
            return pairs
        fusion = fusing.Fusion(self.carry_out, self.ahead)
        confirmation = confirming.Confirmation(self.carry_out, self.ahead)
        # What one kernel takes over need not be confirmed. The kernels of both steps compile at once.
        confirmation.begin(_without(fusion.begin(pairs), pairs))
        pairs = _without(fusion.finish(), pairs)
        confirmation.begin(pairs)
        decided = confirmation.decide(pairs)
        for decision in decided:
            JOURNAL.correct(decision.entry, _as_decided(decision))
        pairs = [(node, decision) for (node, _), decision in zip(pairs, decided, strict=True)]
        # One kernel may gain over answers that are slower than they were expected to be.
        return _without(fusion.fuse(pairs), pairs)

    def _products(self, graph: Any) -> Iterator[tuple[Any, Decision]]:
        """The products of the graph with what the tables say. A miss that is to be tuned has no config yet."""
        for node in list(graph.nodes):
            try:
                decision = self._visit(node)
                if not self.apart.settle(node, decision) and decision is not None:
                    yield node, decision
            except (MissError, TableError):
                raise
            except Exception as error:
                JOURNAL.failure("post-grad pass", error)

    def _visit(self, node: Any) -> Decision | None:
        if node.op != "call_function":
            return None
        name = products.uncovered(node)
        if name is not None:
            JOURNAL.enter(Event(name, "uncovered"))
            return None
        _mark_anew(node)
        try:
            product = products.product(node)
        except Unsupported as error:
            JOURNAL.enter(Event(f"{node.target}: {error}", "uncovered"))
            return None
        if product is None:
            return None
        decision = deciding.decide(self.session, product.query)
        if decision.config is None and product.guessed:
            # Inductor would time it at a guess of its own, and the rows would be kept under ours.
            note = f"not tuned: its sizes come out of data; {decision.event.note}"
            decision = replace(
                decision, config=ATEN, event=replace(decision.event, rung="aten", config=ATEN.text, note=note)
            )
        where = origin.origin(node)
        decision = replace(decision, event=replace(decision.event, module=where.module, source=where.source))
        JOURNAL.enter(decision.event, decision.entry)
        return decision

    def carry_out(self, node: Any, decision: Decision) -> None:
        """Leave on a node what the lowering needs, or do what torch would have done with it."""
        if not self.apart.settle(node, decision):
            self._steer(node, decision)

    def _steer(self, node: Any, decision: Decision) -> None:
        if int_mm_scale.wanted(decision):
            found = int_mm_scale.absorb(node)
            if found is not None:
                found.meta[DECISION] = decision
                return
            if decision.config is not None and decision.config.backend == "cutlass":
                outcome.refuse(decision, "the scale is not a tensor over the columns or rows")
                decision = replace(decision, config=ATEN, refused=True)
        if node.target is int4_products.TILED_MM:
            if decision.branches or decision.config not in (None, ATEN):
                int4_products.absorb(node).meta[DECISION] = decision
        elif decision.unanswered and node.target not in _own():
            outcome.left_alone(decision)
        elif self._must_steer(node, decision):
            node.meta[DECISION] = decision

    def _must_steer(self, node: Any, decision: Decision) -> bool:
        """Inductor's default is left alone, except where Inductor would then search, and for our own operator."""
        if decision.branches or decision.config != ATEN:
            return True
        return state.autotuning() or node.target in (ops.register(), ops.register_int4())


def _own() -> tuple[Any, ...]:
    """Our own operators for one product: the output code calls none of them, so they are always lowered by us."""
    return ops.register(), ops.register_int4(), ops.register_scaled()


def _without(gone: set[Any], pairs: Sequence[tuple[Any, Decision]]) -> Sequence[tuple[Any, Decision]]:
    return [(node, decision) for node, decision in pairs if node not in gone]


def _as_decided(decision: Decision) -> Callable[[Event], Event]:
    return lambda event: decision.event


def _stays(hit: Hit, query: Query) -> bool:
    """Whether a mixed product that a table answers keeps Inductor's own spelling."""
    carried_out = not deciding.leaves_alone(hit) and legality.refusal(hit, query) is None
    return not carried_out and not _packed_by_inductor(query)


def _is_constant(weight: Any, constants: set[Any]) -> bool:
    """Whether freezing makes a constant of a weight: it is one, or was cut out of one in the graph."""
    while weight not in constants and weight.op == "call_function" and len(weight.all_input_nodes) == 1:
        weight = weight.all_input_nodes[0]
    return weight in constants or weight.op == "get_attr"


def _packed_by_inductor(query: Query) -> bool:
    """Whether Inductor's own pattern would make `_weight_int8pack_mm` of a product, which on a GPU is many times slower
    than the cast and the product that ATen stands for in the tables."""
    problem, taken = query.problem, ("bf16", "int8")
    return query.device.kind == "cuda" and problem.fusion == "scale" and (problem.a.dtype, problem.b.dtype) == taken


def _mark_anew(node: Any) -> None:
    """Say of an addmm that its weight is a cast one: in torch 2.11, Inductor makes it of a product and a sum without
    handing their metadata on."""
    if node.target is torch.ops.aten.addmm.default and reading.MARK not in node.meta.get("custom", {}):
        found = mixed.find(node) or int4.find(node)
        if found is not None:
            found.leave_mark(found.weight.op == "get_attr")
