"""Carries out the config of a Decision: confirms it for the IR's operands, then emits Inductor's C++ template or a
generated kernel. If that is impossible, returns None and leaves a note in the journal."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from gemmdb.errors import MissError, TableError
from gemmdb.inductor.decide import deciding, legality, outcome
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.lower import cutlass, inductor_ops, inductor_templates, triton
from gemmdb.inductor.lower.adapter import ir_view, state
from gemmdb.inductor.match.calls import Call
from gemmdb.inductor.observe.journal import JOURNAL
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem

log = logging.getLogger("gemmdb")


def confirmed(decision: Decision, args: tuple[Any, ...]) -> Config:
    """The decided config. If the IR's operands have other layouts than the graph pass saw, it is decided again, by what
    needs no timing."""
    assert decision.config is not None
    problem = ir_view.confirm(decision.problem, args)
    if problem == decision.problem:
        return decision.config
    again = deciding.decide_late(decision.session, replace(decision.query, problem=problem))
    outcome.replaced(decision, again)
    assert again.config is not None
    return again.config


def bound_to_its_constants(decision: Decision) -> None:
    """Keep the graph out of the compile caches, which only know a constant's shape, if its code is only right for the
    constant's values or its place in memory."""
    if decision.problem.constant:
        JOURNAL.provisional = True


def cpp(decision: Decision, config: Config, lower: Callable[[], Any]) -> Any:
    """The GEMM as Inductor's C++ template with the config's blocking. The template packs its weight during lowering.
    Returns None if the template is not legal."""
    node = state.current_node()
    if node is not None and node.target is torch.ops.aten.bmm.default:
        # This is a mixed GEMM written as a batch. Inductor has another template for batches.
        outcome.refuse(decision, "the C++ template was measured on matrices, not on a batch")
        return None
    bound_to_its_constants(decision)
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
    """The GEMM as a generated kernel or on padded operands, for the final layouts of its operands. `scale`, `rows`:
    vectors over N and M that scale it. If that is not possible, returns None and leaves a note in the journal."""
    try:
        operands = triton.Operands.of(decision.query, call, scale, rows)
        pair = (operands.a, operands.b)
        problem = ir_view.confirm(decision.problem, pair)
        config = confirmed(decision, pair)
        if config == ATEN:
            return None
        refusal = legality.rejection(config, replace(decision.query, problem=problem))
        if refusal is None:
            return _lowered(decision, config, problem, operands, scalars)
        outcome.refuse(decision, refusal)
    except (MissError, TableError):
        raise
    except triton.Refused as error:
        outcome.refuse(decision, str(error))
    except Exception as error:
        log.debug("gemmdb: %s as %s", decision.problem.text, decision.config, exc_info=True)
        outcome.refuse(decision, f"Inductor could not generate the kernel: {type(error).__name__}: {error}")
    return None


def _lowered(
    decision: Decision, config: Config, problem: Problem, operands: triton.Operands, scalars: tuple[float, float]
) -> Any:
    """The GEMM with `config`, or with the next best where that is a CUTLASS kernel that cannot be had. None if that
    is ATen."""
    try:
        return _lower(decision, config, problem, operands, scalars)
    except cutlass.NotCompiled as error:
        query = replace(decision.query, problem=problem)
        again = deciding.decide_without_cutlass(decision.session, query, str(error))
        outcome.replaced(decision, again)
        assert again.config is not None
        return None if again.config == ATEN else _lower(decision, again.config, problem, operands, scalars)


def _lower(
    decision: Decision, config: Config, problem: Problem, operands: triton.Operands, scalars: tuple[float, float]
) -> Any:
    if config.kernel == "padded":
        if operands.vectors:
            raise triton.Refused("ATen stores the integer GEMM itself")
        return inductor_ops.padded(config, problem, operands, scalars)
    if config.backend == "cutlass":
        return cutlass.lower(config, problem, operands, decision.session.policy)
    if config.kernel == "inductor_sum":
        return inductor_ops.summed(problem, operands)
    if config.spec.emitted and config.spec.template is None:
        return inductor_templates.lower(config, problem, operands, scalars)
    return triton.lower(config, problem, operands, scalars)
