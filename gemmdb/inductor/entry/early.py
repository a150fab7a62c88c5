"""Begins at the joint stage what the post-grad pass will time, so that it compiles while Inductor's own passes run.

Nothing is decided here. What the later graph has otherwise is begun there, and what was begun in vain costs the time to
generate its code and to compile it. So graphs that will differ are left alone. One with a backward is divided first,
and what it stores for the backward changes what follows a product. Freezing makes constants of weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gemmdb.inductor.benchmark import confirm_rules as rules
from gemmdb.inductor.benchmark.ahead import Ahead, Steer
from gemmdb.inductor.benchmark.confirming import Confirmation
from gemmdb.inductor.decide import deciding
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.decide.horizontal import Fusion
from gemmdb.inductor.entry.session import Session
from gemmdb.inductor.lower.adapter import state
from gemmdb.inductor.match import products
from gemmdb.inductor.match.extract import Unsupported
from gemmdb.inductor.observe.journal import JOURNAL
from gemmdb.settings import Policy


def begin(graph: Any, session: Session, steer: Steer, ahead: Ahead) -> None:
    """Begin the trials of a joint graph that has no backward, and keep them in `ahead`. Never raises."""
    try:
        if not _pays(graph, session.policy):
            return
        pairs = list(_decided(graph, session))
        if not pairs or not state.compiles_in_workers():
            return
        fusion, confirmation = Fusion(steer, ahead), Confirmation(steer, ahead)
        taken = fusion.begin(pairs)
        confirmation.begin([(node, decision) for node, decision in pairs if node not in taken])
        ahead.keep(fusion.trials)
        ahead.keep(confirmation.jobs)
    except Exception as error:
        JOURNAL.failure("joint pass", error)


def _pays(graph: Any, policy: Policy) -> bool:
    """Whether what is begun now is needed at all."""
    if not policy.confirm or policy.on_miss == "error" or state.freezing() or state.may_be_cached():
        return False
    return not _has_backward(graph)


def _has_backward(graph: Any) -> bool:
    return any(node.name.startswith("tangents") for node in graph.find_nodes(op="placeholder"))


def _decided(graph: Any, session: Session) -> Iterator[tuple[Any, Decision]]:
    """The products of a graph with what the tables say. What live tuning will measure has no answer yet."""
    for node in graph.nodes:
        if node.op != "call_function" or products.uncovered(node) is not None:
            continue
        try:
            product = products.product(node)
        except Unsupported:
            continue
        if product is None or product.guessed or rules.objection(product.query, session.policy):
            continue
        decision = deciding.decide(session, product.query)
        if decision.config is not None:
            yield node, decision
