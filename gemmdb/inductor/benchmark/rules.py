"""Rules for which hits are confirmed and which misses are tuned live; each rule with its reason."""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

import torch

from gemmdb.inductor.benchmark import at_rows, limits, trial
from gemmdb.inductor.benchmark.subgraph import computes_weight
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.lower.adapter import state
from gemmdb.kernels.aten import misaligned
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.cutlass import prebuilt
from gemmdb.kernels.default_mode import may_pad
from gemmdb.kernels.hardware import SKINNY_ROWS
from gemmdb.kernels.registry import GPU_ALONE, INDUCTOR_ALONE
from gemmdb.kernels.rules import reject_uncapturable
from gemmdb.key import representatives
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.key.toolchain import installed
from gemmdb.lookup import acceptance, lowering
from gemmdb.lookup.acceptance import SLOW_S, UNMEASURED_RUNGS, extern
from gemmdb.lookup.saving import trivial
from gemmdb.rejected import Rejected
from gemmdb.settings import FAST_COMPILE_COST, Policy
from gemmdb.table.measurement import Protocol

NEEDED = ("sqlite_utils", "jinja2")
"""Libraries of `gemmdb[build]` required for measuring."""
DIVERGE = "the ranks of a job could come to different kernels"


def confirm_rejection(query: Query, policy: Policy) -> Rejected | None:
    """Return why the hit for a query is not confirmed, known before the lookup."""
    found = acceptance.confirm_rejection(query, policy)
    return found or (Rejected(DIVERGE) if state.is_distributed() else None)


def compile_rejection(config: Config, query: Query, policy: Policy) -> Rejected | None:
    """Return why a config is not compiled for confirmation."""
    if config.spec.cost <= FAST_COMPILE_COST or policy.confirm_s >= SLOW_S:
        return None
    # Only CUTLASS compiles this slowly, and kernels in the archive are already compiled.
    ready = prebuilt.cost(config, query.problem, installed(query.device.kind)) <= FAST_COMPILE_COST
    return None if ready else Rejected("nvcc takes half a minute")


def device_rejection(device: Device) -> Rejected | None:
    """Return why nothing may be timed on the device now."""
    if device.kind == "cuda" and torch.cuda.is_current_stream_capturing():
        return Rejected("a CUDA graph is being captured")
    return None


def in_doubt(decision: Decision, node: Any = None) -> bool:
    """Return whether a decision must be confirmed before it is served. `node`: its GEMM's node, if known."""
    if decision.only_timed:
        return decision.config not in (None, ATEN) and not decision.timed_here
    if decision.query.symbolic:
        return at_rows.unmeasured(decision) and not confirm_rejection(decision.query, decision.session.policy)
    doubted = unmeasured(decision) or (node is not None and _measured_with_cold_weight(decision, node))
    return doubted and not confirm_rejection(decision.query, decision.session.policy)


def unmeasured(decision: Decision) -> bool:
    """Return whether a decision's config was never timed as part of this program's code. ATen needs no timing: it runs
    without gemmdb."""
    config, rung = decision.config, decision.event.rung
    if config is None or config == ATEN or decision.branches or "confirmed" in decision.event.evidence:
        return False
    if rung in UNMEASURED_RUNGS:
        return extern.unmeasured(rung, config, decision.event.evidence)
    # Live tuning times our kernels in isolation on a GPU, and all kernels with a substitute for the epilogue.
    by_itself = decision.query.device.kind == "cuda" and not config.spec.emitted
    stand_in = by_itself or decision.problem.fusion != "none"
    return stand_in and (rung == "live" or (rung == "exact" and _from_live(decision)))


def _measured_with_cold_weight(decision: Decision, node: Any) -> bool:
    """Return whether a GPU kernel was measured with a cold weight although the program has just computed the weight,
    such as an fp8 weight that it casts. The speedup with a hot weight may differ."""
    kernel = decision.config not in (None, ATEN) and not decision.branches
    if not kernel or decision.query.device.kind != "cuda" or "confirmed" in decision.event.evidence:
        return False
    protocol = _protocol(decision)
    in_program = protocol is not None and protocol.version >= trial.GPU.version
    return decision.event.rung == "exact" and not in_program and computes_weight(node)


def _from_live(decision: Decision) -> bool:
    """Return whether an exact hit comes from live tuning and was not confirmed."""
    if decision.event.table != str(decision.session.user_table):
        return False
    protocol = _protocol(decision)
    return protocol is not None and protocol.clock == "graph" and protocol.version < trial.GPU.version


def _protocol(decision: Decision) -> Protocol | None:
    text = decision.event.evidence.get("protocol")
    return None if text is None else Protocol.parse(str(text))


def tuning_rejection(query: Query, policy: Policy) -> Rejected | None:
    """Return why a query that misses is not tuned with `on_miss="live"`: it would take too long, or ranks could choose
    different kernels."""
    problem, device = query.problem, query.device
    if problem.op in GPU_ALONE and (device.kind != "cuda" or query.symbolic or missing_library()):
        # Only Inductor's search is left, and no table could name its kernels.
        return Rejected(f"{GPU_ALONE[problem.op]} can be tuned only on a GPU, at fixed sizes, with gemmdb[build]")
    if rejected := representatives.rejection(problem) or reject_uncapturable(problem, device):
        return rejected
    if trivial(problem):
        return Rejected("there is nothing to save: K is 1, or a size is 0")
    return lowering.only_aten(query) or (None if limits.is_patient(policy) else _slow_rejection(query, policy))


def _slow_rejection(query: Query, policy: Policy) -> Rejected | None:
    """Return why a query is not tuned unless `live` is explicit."""
    kind = query.device.kind
    if kind != "cuda":
        first_s, further_s = limits.CPU_FIRST_S, limits.CPU_FURTHER_S
        took = (
            f"on a {kind.upper()} that takes about {first_s:g} s for the first GEMM and {further_s:g} s for each other"
        )
        return Rejected(f"{took}, but only {policy.live_s:g} s are allowed; GEMMDB_ON_MISS=live allows it")
    if query.symbolic:
        return Rejected("its sizes are symbolic")
    if emitted := _only_emitted(query.problem):
        return Rejected(f"{emitted}, and compiling it means loading torch first; GEMMDB_ON_MISS=live allows it")
    if state.is_distributed():
        return Rejected(f"{DIVERGE}; GEMMDB_ON_MISS=live with one user table allows it")
    library = missing_library()
    return Rejected(f"{library} is not installed: pip install gemmdb[build]") if library else None


def _only_emitted(problem: Problem) -> str:
    """Return why a GEMM can only be tuned with code that Inductor generates; empty if it can be tuned without."""
    scaled = problem.scaled and not problem.spec.grouped
    if problem.op in INDUCTOR_ALONE or (scaled and problem.m > SKINNY_ROWS):
        return f"{GPU_ALONE[problem.op]} have Inductor's templates alone"
    # Inductor's own padding pass times a padded GEMM, so a choice without one could be worse than default mode's.
    if may_pad(problem) or (problem.spec.integer and misaligned(problem)):
        return "its rows do not start at multiples of 16 bytes, so a padded GEMM has to be measured"
    return ""


@functools.cache
def missing_library() -> str:
    """Return the first required library that is not installed, empty if all are."""
    return next((name for name in NEEDED if importlib.util.find_spec(name) is None), "")
