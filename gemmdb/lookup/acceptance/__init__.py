"""Acceptance: decides whether to serve a candidate, benchmark it first, leave it to live tuning, or run ATen. Only
acceptance reads the policy's limits and mode. This module contains rung `exact` and the rules that rungs share."""

from __future__ import annotations

from dataclasses import replace

from gemmdb.kernels.config import ATEN
from gemmdb.kernels.cublaslt import activation_of
from gemmdb.key.problem import Query
from gemmdb.lookup import evidence, lowering
from gemmdb.lookup.ask import Ask, Step
from gemmdb.rejected import Rejected
from gemmdb.settings import Policy

UNMEASURED_RUNGS = ("near", "epilogue", "sku", "model")
"""The rungs that serve configs without a measurement of the exact problem."""
SLOW_S = 20.0
"""With a confirming budget of at least this many seconds per graph, slow-compiling configs are also confirmed."""


def exact(ask: Ask) -> Step:
    """Rung `exact`: serve the candidate from the problem's own verdict, or ATen if its gain is too small. It is a miss
    if that computes an activation: other kernels may gain more."""
    found = evidence.exact(ask)
    if isinstance(found, Rejected):
        return Step("exact", None, found.reason)
    needed = required_gain(ask.policy, found.verified)
    if activation_of(found.config) and found.gain < needed:
        return Step("exact", None, f"{found.reason}; a gain of {needed:.1%} is needed", found.evidence)
    if found.config != ATEN and found.gain < needed:
        return found.held_back(needed).step(
            "exact", f"{found.reason}; ATen is served: a gain of {needed:.1%} is needed"
        )
    if "refused" in found.evidence:
        return found.step("exact", f"{found.reason}, but may not be served; {found.config.name} is")
    return found.step("exact")


def required_gain(policy: Policy, verified: bool | None) -> float:
    """Return the minimum gain over ATen (0.02 is 2%) for other configs; higher if `verified` is False."""
    return max(policy.min_gain, policy.unverified_gain) if verified is False else policy.min_gain


def confirming(ask: Ask) -> bool:
    """Return whether the caller confirms. A config then only needs to be faster in expectation; otherwise it must be
    certainly faster."""
    return ask.confirms


def confirm_rejection(query: Query, policy: Policy) -> Rejected | None:
    """Return why a compile does not confirm the config for a query, based on the query alone."""
    if not policy.confirm:
        return Rejected("switched off by the policy")
    symbolic = query.symbolic
    if symbolic and (symbolic != ("m",) or query.problem.op not in lowering.JOINED_OPS or query.problem.constant):
        return Rejected("its sizes are symbolic")
    if query.problem.spec.grouped:
        return Rejected("how its groups are divided is known when the program runs")
    if query.device.kind != "cuda" and policy.confirm_s < SLOW_S:
        kind = query.device.kind.upper()
        return Rejected(f"on a {kind} that takes {SLOW_S:.0f} s, and {policy.confirm_s:g} s are allowed")
    return None


def policy_for(query: Query, policy: Policy) -> Policy:
    """Return the policy for one query, without confirming where that is rejected."""
    return replace(policy, confirm=False) if policy.confirm and confirm_rejection(query, policy) else policy
