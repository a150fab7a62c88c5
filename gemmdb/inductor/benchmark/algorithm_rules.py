"""What the algorithm search leaves out: GEMMs that another kernel serves, that cuBLASLt does not take, or whose calls
would take the host too long."""

from __future__ import annotations

from typing import Any

import torch

from gemmdb.inductor.benchmark import payoff, rules, subgraph
from gemmdb.inductor.decide import legality
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.lower.adapter import state
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.menus.cublaslt_nearby import activated
from gemmdb.kernels.rules import reject_unaligned_rows
from gemmdb.key.device import Device
from gemmdb.key.layout import ITEM_SIZES, VECTOR_BYTES
from gemmdb.key.problem import Problem
from gemmdb.lookup import slow_calls
from gemmdb.lookup.acceptance import extern
from gemmdb.rejected import Rejected

ANY = Config.of(
    "cublaslt", "matmul", algo=0, tile=0, stages=0, split_k=1, reduction=0, swizzle=0, custom=0, inner=0, cluster=0
)  # fmt: skip
"""Stands for every algorithm in rules that read no attribute."""
FEW_ROWS = 8
"""GEMMs with fewer rows than this are bound by the weight's bytes, and rows of our kernels settle them."""


def device_rejection(device: Device) -> Rejected | None:
    """Return why nothing may be timed now."""
    return rules.device_rejection(device) if torch.cuda.is_available() else Rejected("no GPU is here")


def rejection(decision: Decision, node: Any = None) -> Rejected | None:
    """Return why no algorithm is searched for a GEMM. `node`: its node, if known."""
    query, problem, session = decision.query, decision.problem, decision.session
    if decision.config is None or decision.branches or decision.is_branch:
        return Rejected("Inductor decides, or the rows decide at run time")
    if decision.config != ATEN and not rules.in_doubt(decision, node):
        return Rejected("a measured kernel is served")
    if decision.event.rung == "forced":
        return Rejected("its config is forced")
    if decision.unanswered and state.autotuning():
        return Rejected("Inductor autotunes it")
    if problem.m < FEW_ROWS and decision.event.rung == "exact" and decision.config == ATEN:
        return Rejected("rows of our kernels settle it")
    found = rules.confirm_rejection(query, session.policy)
    # Legality first: a dtype that cuBLASLt does not take may have no size in bytes.
    found = found or legality.rejection(ANY, query) or _unaligned(problem) or _slow_calls(decision)
    if found is None and node is not None and subgraph.computes_weight(node):
        found = Rejected("the program has just computed the weight")
    return found


def activation_rejection(decision: Decision, node: Any = None) -> Rejected | None:
    """Return why no algorithm that computes the activation, too, is searched for a GEMM. `node`: its node, if known."""
    query, config = decision.query, decision.config
    if not query.activation:
        return Rejected("cuBLASLt does not compute its epilogue")
    if config is None or decision.branches or decision.is_branch or decision.event.rung == "forced":
        return Rejected("its config is decided elsewhere")
    if config != ATEN and not config.spec.extern and not rules.in_doubt(decision, node):
        return Rejected("a measured kernel is served")
    if decision.unanswered and state.autotuning():
        return Rejected("Inductor autotunes it")
    if extern.tried_activation(payoff.ask_of(decision.session, query)):
        return Rejected("rows settle it")
    found = rules.confirm_rejection(query, decision.session.policy) or _unaligned(decision.problem)
    found = found or legality.rejection(activated(ANY, query.activation), query) or _slow_calls(decision)
    if found is None and node is not None and subgraph.computes_weight(node):
        found = Rejected("the program has just computed the weight")
    return found


def _slow_calls(decision: Decision) -> Rejected | None:
    """Return why the calls of an algorithm take the host too long, whatever it saves on the GPU. Outside of training
    steps, they take no longer than ATen's."""
    policy = state.applied(decision.session.policy)
    return slow_calls(ANY, decision.query, aten_us(decision), 1.0, policy) if policy.training else None


def _unaligned(problem: Problem) -> Rejected | None:
    """Return whether rows of an operand or of the output start between multiples of 16 bytes. Nothing was explored for
    such outputs, and a search for a program with one (N = 30,522) ended with an illegal instruction on the GPU."""
    if problem.n * ITEM_SIZES[problem.out] % VECTOR_BYTES:
        return Rejected("the tensor copy engine wants output rows that start at multiples of 16 bytes")
    return reject_unaligned_rows(problem)


def aten_us(decision: Decision) -> float:
    """Return the expected microseconds of the GEMM with ATen, estimated if no rung answers."""
    us, speedup = decision.event.shown
    if us is None or speedup is None:
        return payoff.aten_us(decision.session, decision.query)
    return us * speedup
