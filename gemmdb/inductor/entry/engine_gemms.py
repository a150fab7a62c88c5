"""The calls of engines' operators in one graph: which are looked up, and which become a kernel.

The rows of the tables compare kernels with ATen, not with an engine's operator. So a kernel is served only after it was
timed against the operator itself, in this compile; in any other case the call stays as the program has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gemmdb.inductor.benchmark import rules
from gemmdb.inductor.decide import deciding
from gemmdb.inductor.decide.decision import DECISION, Decision
from gemmdb.inductor.decide.session import Session
from gemmdb.inductor.lower.decomposed import is_kernel
from gemmdb.inductor.match import fx, opening
from gemmdb.inductor.match.engine_ops import EngineOp
from gemmdb.inductor.match.opening import Opened
from gemmdb.inductor.observe.journal import JOURNAL, Event
from gemmdb.kernels.config import ATEN
from gemmdb.rejected import Rejected

STAYS = "the engine's operator stays: "
"""How the note of a call begins that no kernel replaces."""


class EngineGemms:
    """The calls of one compile. `opened`: the operators that the user opened, by overload. `staying`: the calls that
    were looked up and stay."""

    def __init__(self, session: Session, opened: Mapping[Any, EngineOp]) -> None:
        self.session, self._opened = session, opened
        self._originals: dict[Any, Any] = {}
        self.staying: set[Any] = set()

    def visit(self, node: Any) -> tuple[Any, Decision] | None:
        """Look up the call whose result `node` is. Return the node that takes its place until a kernel is confirmed,
        with its decision; None if the call stays, or for any other node. Raises Unsupported for a call that no GEMM
        expresses."""
        found = opening.find(node, self._opened) if self._opened else None
        if found is None:
            return None
        decision = self._decided(found)
        JOURNAL.enter(decision.event, decision.entry)
        if not is_kernel(decision):
            self.staying.add(node)
            return None
        made = opening.rewrite(found)
        self._originals[made] = node
        return made, decision

    def settle(self, node: Any, decision: Decision) -> None:
        """Carry out the final decision for a node that `visit` returned: keep the kernel, or put the call back."""
        event = decision.event
        original = self._originals.pop(node)
        if is_kernel(decision) and decision.timed_here and not decision.branches:
            node.meta[DECISION] = decision
            opening.remove(original)
            return
        JOURNAL.put(decision.entry, event.refused(f"{STAYS}{event.note or 'no kernel was confirmed to be faster'}"))
        opening.revert(node, original)

    def _decided(self, found: Opened) -> Decision:
        """Look up a call. A miss is not tuned live: its candidates would be compared with ATen."""
        session, query = self.session, found.gemm.query
        where = fx.origin(found.node)
        hit = deciding.ask(session, query)
        rejected = None if hit is not None and hit.rung == "forced" else self._rejection(found)
        if hit is not None and rejected is None:
            decision = deciding.decide(session, query)
            event = decision.event
            if not is_kernel(decision):
                event = replace(event, note=f"{STAYS}{event.note or 'no kernel is expected to be faster than ATen'}")
        else:
            why = rejected or session.explain_miss(query) or "no table has a kernel for it"
            event = Event(query.problem.text, "aten", ATEN.text, query.device.text, ranges=dict(query.ranges))
            decision = Decision(session, query, ATEN, replace(event, note=f"{STAYS}{why}"))
            event = decision.event
        evidence = {**event.evidence, "opened": found.op.name}
        event = replace(
            event, evidence=evidence, module=where.module, source=where.source, symbols=found.gemm.symbols
        )  # fmt: skip
        return replace(decision, event=event, engine_op=found.op.name)

    def _rejection(self, found: Opened) -> Rejected | None:
        """Return why no kernel can be timed against the operator in this compile."""
        query = found.gemm.query
        if found.gemm.guessed or query.symbolic:
            return Rejected("its sizes are symbolic")
        if rejected := rules.confirm_rejection(query, self.session.policy):
            return Rejected(f"kernels are not timed against it ({rejected})")
        return None
