"""GEMMs that torch decomposes before any pass: keep those whose answer is a kernel, and decompose the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gemmdb.inductor.decide import deciding, uncompiled
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.decide.session import Session
from gemmdb.inductor.lower.adapter import decomposition
from gemmdb.inductor.lower.adapter.decomposition import DECOMPOSED
from gemmdb.inductor.match import gemms
from gemmdb.inductor.match.fx import Unsupported
from gemmdb.inductor.observe.journal import JOURNAL, Event
from gemmdb.kernels.config import ATEN

MARK = "gemmdb_addmm"
"""Key in the `custom` metadata of an addmm written by the program. An addmm without it was fused from a GEMM and a
sum."""


class DecomposedGemms(decomposition.Decompositions):
    """The GEMMs of one compile that torch would decompose. Shared by both passes of the compile."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self._events: list[Event] = []
        self._reported: list[Event] = []

    def wanted(self, node: Any, constant: bool) -> bool:
        """Whether the answer for the GEMM at a node of the joint graph is a kernel. If not, the post-grad pass reports
        it. `constant`: freezing will make B a constant. Raises MissError under `on_miss="error"`."""
        name = gemms.uncovered(node)
        try:
            gemm = None if name else gemms.read(node)
        except Unsupported as error:
            name, gemm = f"{node.target}: {error}", None
        if name:
            self._events.append(Event(name, "uncovered"))
        if gemm is None:
            return False
        problem = replace(gemm.query.problem, constant=constant or gemm.query.problem.constant)
        decision = deciding.decide(self.session, replace(gemm.query, problem=problem))
        if is_kernel(decision):
            return True
        self._events.append(as_apart(decision.event))
        return False

    def mark(self, node: Any) -> None:
        """Mark an addmm of the joint graph as the program's own if another addmm of its sizes is not."""
        if self.sum_concerns(node):
            node.meta["custom"] = {**node.meta.get("custom", {}), MARK: True}

    def settle(self, node: Any, decision: Decision | None) -> bool:
        """Decompose a GEMM of the post-grad graph if torch would and the answer is not a kernel. Return whether it was
        decomposed."""
        if decision is not None and is_kernel(decision):
            return False
        if self.concerns(node):
            self.decompose(node, late=True)
        elif self.sum_concerns(node) and MARK not in node.meta.get("custom", {}):
            self.decompose_sum(node)
        else:
            return False
        if decision is not None:
            JOURNAL.correct(decision.entry, as_apart)
        return True

    def report(self) -> None:
        """Record the GEMMs decomposed by the joint graph and the tracing in the journal, once per compile; again if the
        graph is recompiled, which restarts from the previous journal."""
        lost = [*self._events, *(Event(line, "uncovered") for line in self.lost)]
        self._events.clear()
        self.lost.clear()
        if uncompiled.again():
            lost, self._reported = [*self._reported, *lost], []
        else:
            self._reported += lost
        for event in lost:
            JOURNAL.enter(event)


def is_kernel(decision: Decision) -> bool:
    """Whether a decision names a kernel, for all or some sizes."""
    return bool(decision.branches) or decision.config not in (None, ATEN)


def as_apart(event: Event) -> Event:
    """Return the event of a decomposed GEMM. ATen's GEMM time does not apply."""
    untuned = event.rung == "live"
    note = "; ".join(part for part in (f"not tuned: {DECOMPOSED}" if untuned else DECOMPOSED, event.note) if part)
    return replace(event, rung="aten" if untuned else event.rung, config=ATEN.text, note=note)
