"""Which answers are confirmed, and which are not, with the reason."""

from __future__ import annotations

import math
from typing import Any

import torch

from gemmdb.inductor.benchmark import samples as on_gpu
from gemmdb.inductor.benchmark.subgraph import computes_weight
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.lower.adapter import state
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.cutlass import prebuilt
from gemmdb.key.device import Device
from gemmdb.key.problem import Query
from gemmdb.key.toolchain import installed
from gemmdb.lookup import confirmable
from gemmdb.lookup.confirmable import RUNGS, SLOW_S
from gemmdb.settings import ASKED_CALLS, QUICKLY, Policy
from gemmdb.table.measurement import Protocol

UNPAID = "its kernels compile for longer than they could repay"
COST_S = 0.2
"""What a trial takes at least: its two codes are generated and timed."""


def objection(query: Query, policy: Policy) -> str:
    """Why the answer to a query is not confirmed, known before it is looked up; empty where it is."""
    several = "the ranks of a job could come to different kernels" if state.is_distributed() else ""
    return confirmable.objection(query, policy) or several


def too_slow(config: Config, query: Query, policy: Policy) -> str:
    """Why a config is not compiled to be confirmed, empty where it is."""
    if config.spec.cost <= QUICKLY or policy.confirm_s >= SLOW_S:
        return ""
    # Nothing else is as slow as CUTLASS, and a kernel of the archive is there already.
    ready = prebuilt.cost(config, query.problem, installed(query.device.kind)) <= QUICKLY
    return "" if ready else "nvcc takes half a minute"


def patience_s(saved_us: float, policy: Policy) -> float:
    """How long a compile waits for the kernels of a trial: as long as what is expected to be saved repays within the
    policy's number of calls. `saved_us`: microseconds of one call of the graph. A policy that lets a graph wait long
    says how long itself."""
    if policy.confirm_s >= SLOW_S:
        return math.inf
    return saved_us * 1e-6 * (policy.live_calls or ASKED_CALLS)


def repays(saved_us: float, policy: Policy) -> bool:
    """Whether a trial can repay what it takes. `saved_us`: as for `patience_s`."""
    return patience_s(saved_us, policy) >= COST_S


def hindrance(device: Device) -> str:
    """Why nothing may be timed on the device now, empty when it may."""
    if device.kind == "cuda" and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured"
    return ""


def in_doubt(decision: Decision, node: Any = None) -> bool:
    """Whether a decision is to be confirmed before it is served. `node`: that of its product, if it is known."""
    doubted = unmeasured(decision) or (node is not None and elsewhere(decision, node))
    return doubted and not objection(decision.query, decision.session.policy)


def elsewhere(decision: Decision, node: Any) -> bool:
    """Whether a kernel on a GPU was measured with a weight from memory, and the program has just computed the weight:
    an fp8 weight that it casts, for example. What the kernel gains with a weight in the cache is another question."""
    kernel = decision.config not in (None, ATEN) and not decision.branches
    if not kernel or decision.query.device.kind != "cuda" or "confirmed" in decision.event.evidence:
        return False
    return decision.event.rung == "exact" and not _in_program(decision) and computes_weight(node)


def unmeasured(decision: Decision) -> bool:
    """Whether a decision is for a config that nobody has timed as part of this program's code. ATen is what runs
    without gemmdb."""
    config, rung = decision.config, decision.event.rung
    if config is None or config == ATEN or decision.branches or "confirmed" in decision.event.evidence:
        return False
    if rung in RUNGS:
        return True
    # Live tuning times our kernels by themselves on a GPU, and all kernels with a stand-in for the epilogue.
    by_itself = decision.query.device.kind == "cuda" and not config.spec.emitted
    stand_in = by_itself or decision.problem.fusion != "none"
    return stand_in and (rung == "live" or (rung == "exact" and _from_live(decision)))


def _from_live(decision: Decision) -> bool:
    """Whether an exact answer is one of live tuning that was not confirmed."""
    if decision.event.table != str(decision.session.user_table):
        return False
    protocol = _protocol(decision)
    return protocol is not None and protocol.clock == "graph" and protocol.version < on_gpu.PROTOCOL.version


def _in_program(decision: Decision) -> bool:
    """Whether a trial in a program says so."""
    protocol = _protocol(decision)
    return protocol is not None and protocol.version >= on_gpu.PROTOCOL.version


def _protocol(decision: Decision) -> Protocol | None:
    text = decision.event.evidence.get("protocol")
    return None if text is None else Protocol.parse(str(text))
