"""Which answers a compile confirms, as far as the question says: it times them beside ATen before it serves them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gemmdb.key.problem import Query
from gemmdb.settings import Policy

RUNGS = ("near", "epilogue", "sku", "model")
"""The rungs whose answers no measurement of the very problem stands behind."""
SLOW_S = 20.0
"""A policy that lets a graph wait this many seconds gets what compiles slowly confirmed, too."""


def objection(query: Query, policy: Policy) -> str:
    """Why the answer to a query is not confirmed; empty where it is."""
    if not policy.confirm:
        return "switched off by the policy"
    if any(low != high for low, high in query.ranges.values()):
        return "its sizes are symbolic"
    if query.problem.spec.grouped:
        return "how its groups are divided is known when the program runs"
    if query.device.kind != "cuda" and policy.confirm_s < SLOW_S:
        kind = query.device.kind.upper()
        return f"on a {kind} that takes {SLOW_S:.0f} s, and {policy.confirm_s:g} s are allowed"
    return ""


def applied(query: Query, policy: Policy, objection: Callable[[Query, Policy], str] = objection) -> Policy:
    """The policy for one query: without confirming where there is an objection to that."""
    return replace(policy, confirm=False) if policy.confirm and objection(query, policy) else policy
