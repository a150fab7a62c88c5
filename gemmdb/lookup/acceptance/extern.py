"""Extern kernels, such as cuBLASLt's algorithms, that won a GEMM without its epilogue.

One takes the place of ATen's call, and the kernels around it stay as they are. So its time without an epilogue holds
with any, and it saves as many microseconds. Rung `epilogue` serves it; `exact` and `near` leave the GEMM to it unless
their own kernel saves more, or it was measured with the epilogue too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gemmdb.hit import Hit
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.cublaslt import activation_of
from gemmdb.kernels.registry import KERNELS
from gemmdb.key.problem import Problem
from gemmdb.lookup import evidence
from gemmdb.lookup.acceptance import UNMEASURED_RUNGS, exact
from gemmdb.lookup.ask import Ask, Step
from gemmdb.rejected import Rejected
from gemmdb.table.reader import Table
from gemmdb.table.record import Time

_MEMO = "extern"
_OPS = frozenset(op for kernel in KERNELS.values() if kernel.extern for op in kernel.ops)


def unfused(problem: Problem) -> Problem:
    """Return the GEMM without its epilogue."""
    return problem if problem.epilogue is None else replace(problem, fusion="none")


def unmeasured(rung: str, config: Config, facts: Mapping[str, Any]) -> bool:
    """Return whether the config of an answer was not measured as it will run. `facts`: the answer's evidence."""
    if config == ATEN or rung not in UNMEASURED_RUNGS:
        return False
    as_it_runs = facts.get("measured_as") == "exact" and facts.get("measured_fusion") == "none"
    return not (config.spec.extern and as_it_runs)


def extern(ask: Ask) -> Step | None:
    """Return the Step that serves the extern kernel that won the GEMM without its epilogue; None if there is none.
    Strict mode serves only what was measured with the epilogue."""
    if _MEMO not in ask.memo:
        ask.memo[_MEMO] = _extern(ask)
    found: Step | None = ask.memo[_MEMO]
    return found


def pick(ask: Ask) -> Hit | None:
    """Return the hit of the GEMM without its epilogue from its own rows; None without any."""
    return exact(ask.at(unfused(ask.problem))).hit


def tried(ask: Ask) -> bool:
    """Return whether a table with a verdict on the GEMM, or on the GEMM without its epilogue, timed an extern kernel
    for it."""
    problems = dict.fromkeys((ask.problem, unfused(ask.problem)))
    return any(time.config.spec.extern for problem in problems for time in _own_times(ask.at(problem)))


def tried_activation(ask: Ask) -> bool:
    """Return whether a table timed a kernel that computes the GEMM's activation."""
    records = (ask.read(Table.record, table, ask.problem, ask.device) for table in ask.tables)
    times = (time for record in records if record for time in record.measured)
    return any(activation_of(time.config) == ask.query.activation for time in times)


def measured(ask: Ask, config: Config) -> bool:
    """Return whether the table with a verdict on the GEMM has a full measurement of a config for it."""
    return any(time.full and time.config == config for time in _own_times(ask))


def _own_times(ask: Ask) -> Sequence[Time]:
    """Return the times in the table with a verdict on the GEMM."""
    found = evidence.verdict_of(ask)
    if found is None:
        return ()
    table, verdict, _ = found
    return ask.read(Table.pooled, table, ask.problem, ask.device, ask.query.l2, verdict.klass) or ()


def saved_us(hit: Hit) -> float:
    """Return the microseconds that a hit saves per call."""
    return hit.expected_us * (hit.speedup - 1)


def exact_or_extern(ask: Ask) -> Step:
    """Rung `exact`, unless an extern kernel saves more than its pick."""
    return left_to_extern(ask, exact(ask))


def left_to_extern(ask: Ask, step: Step) -> Step:
    """Return the step, without its hit if an extern kernel saves more."""
    if step.hit is None or step.hit.branches:
        return step
    other = extern(ask)
    if other is None or other.hit is None or saved_us(step.hit) >= saved_us(other.hit):
        return step
    name = other.hit.config.name
    return Step(step.rung, None, f"{step.reason}; left to rung epilogue, where {name} saves more", step.evidence)


def _extern(ask: Ask) -> Step | None:
    problem = ask.problem
    if problem.epilogue is None or problem.op not in _OPS or ask.symbolic or ask.policy.on_miss == "error":
        return None
    alone = unfused(problem)
    found = evidence.verdict_of(at := ask.at(alone))
    if found is None or not any(config.spec.extern for config in found[1].ties):
        return None  # This is the usual case, and the quickest check.
    step = exact(at)
    hit = step.hit
    if hit is None or not hit.config.spec.extern or _rejection(ask, hit.config):
        return None
    if measured(ask, hit.config):
        return None  # With the epilogue too: rung `exact` has the result.
    saved, aten_us = saved_us(hit), hit.expected_us * hit.speedup
    own = evidence.exact(ask)
    if not isinstance(own, Rejected):
        aten_us = max(aten_us, own.aten_us)  # It includes the kernel after ATen's.
    facts = {**hit.evidence, "measured_as": "exact", "measured_fusion": "none"}
    served = Hit("epilogue", hit.config, aten_us - saved, aten_us / (aten_us - saved), hit.table, facts)
    return Step("epilogue", served, f"measured as {alone.op} fusion=none: {step.reason}", facts)


def _rejection(ask: Ask, config: Config) -> Rejected | None:
    """Return why a config that won without the epilogue is not served. Unlike a rung's own hit, the other rungs give
    way to it, so it must be certain here that the caller can run it."""
    if config in evidence.barred(ask):
        return Rejected("wrong or crashed with this epilogue")
    return ask.rejection(config) or (ask.excluded(config, None) if ask.excluded else None)
