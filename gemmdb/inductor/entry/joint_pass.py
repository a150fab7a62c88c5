"""The joint pass: matches weight-only GEMMs before Inductor's own patterns do, and starts trials early.

Only int8-weight and int4-weight GEMMs that hit are rewritten here. A GEMM that torch would decompose is kept whole if
it hits a kernel. All other GEMMs wait for the post-grad pass.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from typing import Any

from gemmdb.errors import MissError, TableError
from gemmdb.inductor.benchmark import rules
from gemmdb.inductor.benchmark import tune as tuning
from gemmdb.inductor.benchmark.algorithm_jobs import is_guess
from gemmdb.inductor.benchmark.confirm import Confirmation
from gemmdb.inductor.benchmark.horizontal import Fusion
from gemmdb.inductor.decide import deciding, legality
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.decide.session import Session
from gemmdb.inductor.entry.post_grad_pass import PostGradPass
from gemmdb.inductor.lower.adapter import state
from gemmdb.inductor.lower.adapter.decomposition import MATRICES
from gemmdb.inductor.match import gemms, int4, mixed
from gemmdb.inductor.match.fx import Unsupported
from gemmdb.inductor.observe.journal import JOURNAL
from gemmdb.kernels import default_mode
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Query

log = logging.getLogger("gemmdb")
Found = mixed.Mixed | int4.Int4


class JointPass:
    """Rewrites weight-only GEMMs whose decision Inductor would not carry out."""

    def __init__(self, session: Session, later: PostGradPass) -> None:
        self.session, self.later, self.apart = session, later, later.apart
        self.identity, self.frozen = session.identity, later.frozen

    def __call__(self, graph: Any) -> None:
        frozen = state.frozen_parameters()
        constants = {node: frozen[i] for i, node in enumerate(graph.find_nodes(op="placeholder")) if i in frozen}
        rewritten, queries = False, list[Query]()
        for node in list(graph.nodes):
            try:
                found = mixed.find(node) or int4.find(node, constants)
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
        try:
            tuning.expect(self.session, queries)
        except Exception as error:
            log.debug("looking ahead: %s", error)
        if rewritten:
            graph.eliminate_dead_code()
        self._begin_trials(graph)

    def _settle(self, graph: Any, node: Any, found: Found | None, constants: Collection[Any]) -> bool:
        """Keep a GEMM that torch decomposes if it hits a kernel. Return whether it was rewritten."""
        wanted = False
        try:
            constant = _is_constant(found.weight if found else node.args[MATRICES[node.target][1]], constants)
            if found is not None:
                found.leave_mark(constant)
            wanted = self.apart.wanted(node, constant)
        finally:
            if not wanted:
                self.apart.decompose(node)
        if wanted and found is not None:
            found.rewrite(graph)
        return wanted and found is not None

    def _visit(self, graph: Any, found: Found, constant: bool, queries: list[Query]) -> bool:
        """Rewrite a weight-only GEMM that hits. Return whether it was rewritten."""
        try:
            found.leave_mark(constant)
            gemm = gemms.read(found.node)
        except Unsupported:
            return False
        if gemm is None:
            return False
        query = gemm.query
        hit = deciding.ask(self.session, query)
        if (hit is None or hit.rung != "forced") and self._untimed(found, query):
            return False
        if hit is None:
            # Whichever config turns out fastest must still be possible then.
            if not deciding.to_tune(self.session, query):
                return False
            queries.append(query)
        else:
            is_kernel = hit.config != ATEN or hit.branches
            carried_out = is_kernel and legality.hit_rejection(hit, query) is None
            if not carried_out and not _needs_rewriting(found, query, forced=hit.rung == "forced"):
                return False  # Keep the program's own spelling, and Inductor's own pattern.
        found.rewrite(graph)
        return True

    def _untimed(self, found: Found, query: Query) -> bool:
        """Whether no trial would tell what it costs to put the activation's columns in the order of the weight's
        rows."""
        ordered = isinstance(found, int4.Int4) and found.order is not None
        return ordered and rules.confirm_rejection(query, self.session.policy) is not None

    def _look_ahead(self, node: Any, queries: list[Query]) -> None:
        """Collect the query of a GEMM that would be tuned live on a miss."""
        try:
            gemm = gemms.read(node) if node.op == "call_function" else None
            if gemm and deciding.to_tune(self.session, gemm.query):
                queries.append(gemm.query)
        except Exception as error:
            # If it is still in the graph, the post-grad pass will report it.
            log.debug("looking ahead: %s", error)

    def _begin_trials(self, graph: Any) -> None:
        """Start compiling what the post-grad pass will time, while Inductor's own passes run. Never raises.

        Nothing is decided here. If the later graph differs, its trials start there, and the code compiled here is
        wasted. So graphs that will change are skipped: a graph with a backward is partitioned first, and the
        activations it saves change what follows a GEMM; freezing turns weights into constants.
        """
        policy = self.session.policy
        try:
            if not policy.confirm or policy.on_miss == "error" or state.freezing() or state.may_be_cached():
                return
            if any(node.name.startswith("tangents") for node in graph.find_nodes(op="placeholder")):
                return
            pairs = list(self._decided(graph))
            if not pairs or not state.compiles_in_workers():
                return
            steer, ahead = self.later.carry_out, self.later.ahead
            fusion, confirmation = Fusion(steer, ahead), Confirmation(steer, ahead)
            taken = fusion.begin(pairs)
            # A search settles which algorithm of cuBLASLt is the fastest, and compiles nothing.
            confirmation.begin([pair for pair in pairs if pair[0] not in taken and not is_guess(pair[1])])
            fusion.keep()
            confirmation.keep()
        except Exception as error:
            JOURNAL.failure("joint pass", error)

    def _decided(self, graph: Any) -> Iterator[tuple[Any, Decision]]:
        """Yield the GEMMs of a graph with their decisions. GEMMs to be tuned live have no config yet."""
        for node in graph.nodes:
            if node.op != "call_function" or gemms.uncovered(node) is not None:
                continue
            try:
                gemm = gemms.read(node)
            except Unsupported:
                continue
            if gemm is None or gemm.guessed or rules.confirm_rejection(gemm.query, self.session.policy):
                continue
            if gemm.query.symbolic:
                continue  # Its code depends on numbers of the graph, which is still changing.
            decision = deciding.decide(self.session, gemm.query)
            if decision.config is not None:
                yield node, decision


def _is_constant(weight: Any, constants: Collection[Any]) -> bool:
    """Return whether freezing makes a weight constant: it is a constant, or a slice of one in the graph."""
    while weight not in constants and weight.op == "call_function" and len(weight.all_input_nodes) == 1:
        weight = weight.all_input_nodes[0]
    return weight in constants or weight.op == "get_attr"


def _needs_rewriting(found: Found, query: Query, forced: bool) -> bool:
    """Return whether Inductor would run something else for a GEMM than what ATen stands for in the tables. On a CPU,
    that is `_weight_int8pack_mm` where Inductor's own pattern finds it, which misses some spellings; ATen that is
    `forced` is the program's own. On a GPU it is the cast plus GEMM, and what that pattern makes of it is many times
    slower."""
    if query.device.kind == "cuda":
        problem, taken = query.problem, ("bf16", "int8")
        return problem.fusion == "scale" and (problem.a.dtype, problem.b.dtype) == taken
    if forced or not isinstance(found, mixed.Mixed):
        return False
    return default_mode.packs_int8(query.problem, query.ranges) and not found.packed_by_inductor
