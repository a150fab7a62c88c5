"""Acceptance: what is done with what the sources found. It is served, benchmarked first, left to live tuning, or ATen
runs. It alone reads the policy's limits and mode. Here are the rules that rungs share, and rung `exact`."""

from __future__ import annotations

from dataclasses import replace

from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Query
from gemmdb.lookup import evidence
from gemmdb.lookup.ask import Ask, Step
from gemmdb.rejected import Rejected
from gemmdb.settings import Policy

UNMEASURED_RUNGS = ("near", "epilogue", "sku", "model")
"""The rungs whose answers no measurement of the very problem stands behind."""
SLOW_S = 20.0
"""A policy that lets a graph wait this many seconds gets what compiles slowly confirmed, too."""


def exact(ask: Ask) -> Step:
    """The candidate of the problem's own verdict; ATen if it gains too little."""
    found = evidence.exact(ask)
    if isinstance(found, Rejected):
        return Step("exact", None, found.reason)
    needed = required_gain(ask.policy, found.verified)
    if found.config != ATEN and found.gain < needed:
        return found.held_back(needed).step(
            "exact", f"{found.reason}; ATen is served: a gain of {needed:.1%} is needed"
        )
    if "refused" in found.evidence:
        return found.step("exact", f"{found.reason}, but may not be served; {found.config.name} is")
    return found.step("exact")


def required_gain(policy: Policy, verified: bool | None) -> float:
    """The least gain over ATen (0.02 is 2%) for anything but ATen; more for what is not `verified`."""
    return max(policy.min_gain, policy.unverified_gain) if verified is False else policy.min_gain


def confirming(ask: Ask) -> bool:
    """Whether the caller benchmarks an answer that was not measured for this very problem beside ATen before it serves
    it. Then an answer that is expected to be faster is enough; otherwise it has to be faster for certain. False where
    the policy does not say, as in a lookup outside of a compile, and for symbolic sizes."""
    return bool(ask.policy.confirm) and not ask.symbolic


def confirm_rejection(query: Query, policy: Policy) -> Rejected | None:
    """Why a compile does not confirm the answer to a query, as far as the query says."""
    if not policy.confirm:
        return Rejected("switched off by the policy")
    if any(low != high for low, high in query.ranges.values()):
        return Rejected("its sizes are symbolic")
    if query.problem.spec.grouped:
        return Rejected("how its groups are divided is known when the program runs")
    if query.device.kind != "cuda" and policy.confirm_s < SLOW_S:
        kind = query.device.kind.upper()
        return Rejected(f"on a {kind} that takes {SLOW_S:.0f} s, and {policy.confirm_s:g} s are allowed")
    return None


def policy_for(query: Query, policy: Policy) -> Policy:
    """The policy for one query: without confirming where that is rejected."""
    return replace(policy, confirm=False) if policy.confirm and confirm_rejection(query, policy) else policy
