"""Exempt GEMMs from Inductor's padding pass."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

from gemmdb.inductor.benchmark import tune as tuning
from gemmdb.inductor.decide import deciding
from gemmdb.inductor.decide.session import Session
from gemmdb.inductor.match import fx, gemms
from gemmdb.kernels.aten import misaligned
from gemmdb.kernels.config import ATEN
from gemmdb.kernels.default_mode import may_pad, returns_view
from gemmdb.key.problem import Query
from gemmdb.lookup.evidence import BESIDE_PADDING


def answered(current: Session | None, node: Any) -> bool:
    """Whether the session of the compile in progress has a measured answer for the GEMM at `node`, or will measure one.
    For misaligned rows, live tuning also tries padded GEMMs. The lookup uses the unpadded GEMM. On a GPU, Inductor
    splits the bias from an fp32 addmm before elementwise work, so there an answer for the remaining GEMM counts too.
    Without an answer, ATen without padding could run, so Inductor decides. It also decides where the graph returns the
    output and padding may be fastest: its pass returns a view of padded rows, and gemmdb would copy them. A frozen
    session answers everything: Inductor's decision would be a benchmark. A batch-invariant one answers the GEMMs that
    batch invariance covers: whether Inductor pads depends on M."""
    if current is None:
        return False
    if current.policy.frozen:
        return True
    try:
        gemm = gemms.read(node)
    except Exception:
        # gemmdb skips nodes that it cannot read.
        return False
    if gemm is None:
        return False
    if current.policy.batch_invariant and _is_covered(gemm.query):
        return True
    queries, problem = [gemm.query], gemm.query.problem
    if problem.spec.unbiased and problem.epilogue and problem.bias and problem.bias.dtype == "fp32":
        queries.append(replace(gemm.query, problem=replace(problem, op=problem.spec.unbiased, bias=None)))
    returned = fx.is_returned(node)
    if any(_decided(current, query, returned) for query in queries):
        return True
    if returned and may_pad(problem):
        return False
    if not deciding.to_tune(current, gemm.query):
        return False
    return tuning.expects(current, gemm.query, _count(node, gemm.query))


def _is_covered(query: Query) -> bool:
    """Whether batch invariance covers a GEMM."""
    from gemmdb.lookup.acceptance import invariant  # Lazy, like the rungs.

    return invariant.rejection(query) is None


def _decided(current: Session, query: Query, returned: bool) -> bool:
    """Whether the answer rules out Inductor's padding: it is forced, or won a measurement that included what that pass
    would run. Any other kernel is only expected to win: it is confirmed against ATen without padding and may be
    refused, which costs time only if rows are misaligned. Padding aligned rows hides that GEMMs share an activation.
    `returned`: whether the graph returns the output."""
    hit = deciding.ask(current, query)
    if hit is None:
        return False
    if hit.rung == "forced":
        return True
    if may_pad(query.problem):
        measured = hit.rung == "exact" and hit.evidence.get(BESIDE_PADDING, False)
        return bool(measured) and not (returned and returns_view(hit.config))
    if hit.rung == "exact" or hit.config.kernel == "padded":
        return True
    return hit.config != ATEN and not misaligned(query.problem)


def _count(node: Any, query: Query) -> int:
    """Count the GEMMs with the same problem in the graph of `node`."""
    count = 0
    for other in node.graph.find_nodes(op="call_function", target=node.target):
        with contextlib.suppress(Exception):
            found = gemms.read(other)
            count += found is not None and found.query.problem == query.problem
    return count
