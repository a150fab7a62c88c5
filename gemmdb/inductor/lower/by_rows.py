"""Lower a GEMM whose M is symbolic to one node that several kernels compute, each for a range of M."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gemmdb.hit import Range
from gemmdb.inductor.decide import deciding, legality, outcome
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.lower import cublaslt, cutlass, triton
from gemmdb.inductor.lower.adapter import row_choice, rows, symbolic, templates
from gemmdb.inductor.lower.triton import Operands, Refused
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.lookup import lowering


def joined(decision: Decision) -> bool:
    """Return whether all kernels of a decision can compute one node."""
    return all(lowering.joins(config, decision.problem) for _, config in decision.branches)


def lower(decision: Decision, problem: Problem, operands: Operands, scalars: tuple[float, float]) -> Any:
    """Return the output in Inductor's IR. `problem`: that of the operands. ATen takes the place of a kernel that cannot
    be lowered, with a note in the journal. Raises Refused if M is not symbolic, or if ATen cannot do that or may not,
    since it adds in another order, and Unavailable if a CUTLASS kernel is not available."""
    if problem != decision.problem:
        raise Refused(deciding.LAYOUT_CHANGED)
    if symbolic.number(operands.sizes[0]) is not None:
        raise Refused("M is fixed")
    if rejected := row_choice.rejection():
        raise Refused(rejected.reason)
    ours = _operands(operands)
    parts: list[row_choice.Part] = []
    for limit, config, interval in _intervals(decision):
        try:
            kernel, used = _kernel(decision, config, (interval, operands), scalars)
            ours = used or ours
        except cutlass.Unavailable:
            raise
        except Exception as error:  # Inductor's own, too.
            if decision.session.policy.batch_invariant:
                raise Refused(f"one of its kernels cannot be lowered: {error}") from error
            part = replace(decision.query, ranges={**decision.query.ranges, "m": interval})
            why = "" if isinstance(error, Refused) else f"Inductor could not generate it: {type(error).__name__}: "
            outcome.refuse(replace(decision, query=part, is_branch=True), f"{why}{error}")
            kernel = _aten(problem, scalars)
        parts.append(row_choice.Part(limit, kernel))
    return rows.gemm(row_choice.chosen_among(operands.sizes[0], parts, ours), triton.stored(problem, operands))


def _intervals(decision: Decision) -> list[tuple[int | None, Config, Range]]:
    """Return the largest M, the config and the range of M of each part."""
    low, high = decision.query.ranges["m"]
    found: list[tuple[int | None, Config, Range]] = []
    for limit, config in decision.branches:
        found.append((limit, config, (low, high if limit is None else limit)))
        low = 0 if limit is None else limit + 1
    return found


def _kernel(
    decision: Decision, config: Config, where: tuple[Range, Operands], scalars: tuple[float, float]
) -> tuple[Any, tuple[Any, ...]]:
    """Return the kernel of a part, and the operands as cuBLASLt reads them if it calls that. Raises Refused."""
    (interval, operands), problem = where, decision.problem
    if config == ATEN:
        return _aten(problem, scalars), ()
    if rejected := legality.rejection(config, decision.query, interval):
        raise Refused(rejected.reason)
    operands = replace(operands, ranges={**operands.ranges, "m": interval})
    if config.backend == "cublaslt":
        return cublaslt.prepared(config, problem, operands)
    if config.backend == "cutlass":
        return _cutlass(decision, config, problem, operands), ()
    return triton.choice(config, problem, operands, scalars), ()


def _cutlass(decision: Decision, config: Config, problem: Problem, operands: Operands) -> Any:
    if rejected := row_choice.cutlass_rejection():
        raise cutlass.Unavailable(rejected.reason)
    found = cutlass.prepared(config, problem, operands, decision.session.policy)
    if {node.get_name() for node in found.operands.values()} - {node.get_name() for node in _operands(operands)}:
        raise Refused("CUTLASS needs a copy of an operand, which would be made for any number of rows")
    return found


def _aten(problem: Problem, scalars: tuple[float, float]) -> row_choice.Aten:
    if not lowering.joins(ATEN, problem):
        raise Refused("one of its kernels cannot be lowered, and ATen takes several here")
    return row_choice.Aten(problem.op, scalars, problem.numerics.fast)


def _operands(operands: Operands) -> tuple[Any, ...]:
    """Return what ATen reads, in memory."""
    extras = [operands.bias] if operands.bias is not None else []
    return (operands.a, operands.b, *map(templates.settled, (*extras, *operands.scales)))
