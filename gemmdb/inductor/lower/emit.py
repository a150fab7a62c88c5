"""Apply the config of a Decision: confirm it for the IR's operands, then emit Inductor's C++ template or a generated
kernel. Return None with a note in the journal if that is impossible."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from gemmdb.errors import MissError, TableError
from gemmdb.inductor.decide import deciding, legality, outcome
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.lower import by_rows, cublaslt, cutlass, inductor_ops, inductor_templates, triton
from gemmdb.inductor.lower.adapter import codegen, ir_view, state
from gemmdb.inductor.match import fx
from gemmdb.inductor.match.calls import Call
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.cublaslt import activation_of
from gemmdb.kernels.default_mode import returns_view
from gemmdb.key.problem import Problem

log = logging.getLogger("gemmdb")


def confirmed(decision: Decision, pair: tuple[Any, ...]) -> Config:
    """Return the decided config. If the layouts of A and B in the IR differ from those in the graph pass, decide again
    without benchmarks."""
    assert decision.config is not None
    problem = ir_view.confirm(decision.problem, pair)
    if problem == decision.problem:
        return decision.config
    again = deciding.decide_late(decision.session, replace(decision.query, problem=problem))
    outcome.replaced(decision, again)
    assert again.config is not None
    return again.config


def cpp(decision: Decision, config: Config, lower: Callable[[], Any]) -> Any:
    """Lower the GEMM to Inductor's C++ template with the config's blocking. The template packs its weight during
    lowering. Return None if the template is not legal."""
    node = state.current_node()
    if node is not None and node.target is torch.ops.aten.bmm.default:
        # A mixed GEMM written as a batch. Inductor has another template for batches.
        outcome.refuse(decision, "the C++ template was benchmarked on matrices, not on a batch")
        return None
    factors = [tuple(int(config.values[f"{name}_{side}"]) for side in "mnk") for name in ("threads", "blocks")]
    # If any is 0, the template's own rule applies.
    threads, blocks = (found if all(found) else None for found in factors)
    since = state.operations()
    try:
        with state.only_cpp(threads, blocks):
            result = lower()
    except Exception as error:
        outcome.refuse(decision, f"the C++ template refused: {type(error).__name__}")
        return None
    if not state.made_cpp_template(since):
        outcome.refuse(decision, "the C++ template is not legal here")
        return None if state.autotuning() else result
    return result


def generated(
    decision: Decision,
    call: Call,
    scale: Any = None,
    rows: Any = None,
    scalars: tuple[float, float] = (1, 1),
) -> Any:
    """Lower the GEMM to a generated kernel or padded operands, for the operands' final layouts. `scale`, `rows`: scale
    vectors over N and M. Return None with a note in the journal if that is not possible. With batch invariance, one
    kernel takes the place of several that cannot share M."""
    try:
        operands = triton.Operands.of(decision.query, call, scale, rows)
        pair = (operands.a, operands.b)
        problem = ir_view.confirm(decision.problem, pair)
        if decision.branches:
            return _lowered(decision, ATEN, problem, operands, scalars)
        config = _dense_where_returned(decision, confirmed(decision, pair))
        if config == ATEN:
            return None
        if activation_of(config) != activation_of(decision.config or ATEN):
            # The graph pass has left the epilogue where it was, or has made it a part of the GEMM.
            raise triton.Refused(deciding.LAYOUT_CHANGED)
        refusal = legality.rejection(config, replace(decision.query, problem=problem))
        if refusal is None:
            return _lowered(decision, config, problem, operands, scalars)
        why = str(refusal)
    except (MissError, TableError):
        raise
    except triton.Refused as error:
        why = str(error)
    except Exception as error:
        log.debug("gemmdb: %s as %s", decision.problem.text, decision.config, exc_info=True)
        why = f"Inductor could not generate the kernel: {type(error).__name__}: {error}"
    if decision.branches and decision.session.policy.batch_invariant:
        return generated(deciding.alone(decision, why), call, scale, rows, scalars)
    outcome.refuse(decision, why)
    return None


def _dense_where_returned(decision: Decision, config: Config) -> Config:
    """Return the config, or the next best if it gives a view of padded rows that the program would get. A forced config
    stays, and a trial times what runs inside of a graph."""
    forced = decision.event.rung == "forced"
    if forced or codegen.is_trial() or not returns_view(config) or not fx.is_returned(state.current_node()):
        return config
    again = deciding.decide_dense(decision.session, decision.query)
    outcome.replaced(decision, again)
    assert again.config is not None
    return again.config


def _lowered(
    decision: Decision, config: Config, problem: Problem, operands: triton.Operands, scalars: tuple[float, float]
) -> Any:
    """Lower the GEMM with `config`, or with the kernels of a decision that has several by M; with the next best if a
    CUTLASS kernel is not available. None if that is ATen."""
    try:
        return _lower(decision, config, problem, operands, scalars)
    except cutlass.Unavailable as error:
        again = without_cutlass(decision, problem, error)
        assert again.config is not None
        return _lower(again, again.config, problem, operands, scalars)


def without_cutlass(decision: Decision, problem: Problem, why: cutlass.Unavailable) -> Decision:
    """Record and return the next best decision for a problem whose CUTLASS kernel is not available."""
    query = replace(decision.query, problem=problem)
    again = deciding.decide_without_cutlass(decision.session, query, str(why))
    outcome.replaced(decision, again)
    return replace(again, entry=decision.entry, is_branch=decision.is_branch)


def _lower(
    decision: Decision, config: Config, problem: Problem, operands: triton.Operands, scalars: tuple[float, float]
) -> Any:
    if decision.branches:
        return by_rows.lower(decision, problem, operands, scalars)
    if config == ATEN:
        return None
    if config.kernel == "padded":
        if operands.vectors:
            raise triton.Refused("ATen stores the integer GEMM itself")
        return inductor_ops.padded(config, problem, operands, scalars)
    if config.backend == "cutlass":
        return cutlass.lower(config, problem, operands, decision.session.policy)
    if config.backend == "cublaslt":
        return cublaslt.lower(config, problem, operands)
    if config.kernel == "inductor_sum":
        return inductor_ops.summed(problem, operands)
    if config.spec.emitted and config.spec.template is None:
        return inductor_templates.lower(config, problem, operands, scalars)
    return triton.lower(config, problem, operands, scalars)
