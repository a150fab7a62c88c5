"""What live tuning does not try, and why: it would take long, or processes could come to different kernels."""

from __future__ import annotations

import functools
import importlib.util

from gemmdb.inductor.decide import legality
from gemmdb.inductor.lower.adapter import state
from gemmdb.kernels.aten import PADDED, misaligned
from gemmdb.kernels.hardware import SKINNY_ROWS
from gemmdb.kernels.registry import GPU_ALONE, INDUCTOR_ALONE
from gemmdb.kernels.rules import reject_uncapturable
from gemmdb.key import representatives
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup.saving import trivial
from gemmdb.settings import PATIENT_S, Policy

SLOW_S = PATIENT_S
"""A policy that lets a graph wait this many seconds gets everything tuned: what the rules exclude takes that long."""
NEEDED = ("sqlite_utils", "jinja2")
"""The libraries of `gemmdb[build]` that measuring needs."""


def objection(query: Query, policy: Policy) -> str:
    """Why a query that misses is not tuned under `on_miss="live"`; empty when it is."""
    symbolic = any(low != high for low, high in query.ranges.values())
    op = query.problem.op
    if op in GPU_ALONE and (query.device.kind != "cuda" or symbolic or missing()):
        # Only Inductor's search is left, and no table could name its kernels.
        return f"{GPU_ALONE[op]} can be tuned only on a GPU, at fixed sizes, with gemmdb[build]"
    if reason := representatives.rejection(query.problem) or reject_uncapturable(query.problem, query.device):
        return str(reason)
    if trivial(query.problem):
        return "there is nothing to save: K is 1, or a size is 0"
    if found := legality.only_aten(query):
        return found.reason
    if patient(policy):
        return ""
    if query.device.kind != "cuda":
        took = f"on a {query.device.kind.upper()} that takes {SLOW_S:.0f} s at first and 10 s for each problem"
        return f"{took}, and {policy.live_s:.0f} s are allowed; GEMMDB_ON_MISS=live allows it"
    if symbolic:
        return "its sizes are symbolic"
    emitted = _emitted(query.problem)
    if emitted:
        return f"{emitted}, and compiling it means loading torch first; GEMMDB_ON_MISS=live allows it"
    if state.is_distributed():
        return "the ranks of a job could come to different kernels; GEMMDB_ON_MISS=live with one user table allows it"
    library = missing()
    return f"{library} is not installed: pip install gemmdb[build]" if library else ""


def patient(policy: Policy) -> bool:
    """Whether a graph may wait for everything that can be measured."""
    return policy.live_s >= SLOW_S


def _emitted(problem: Problem) -> str:
    """Why a product cannot be tuned without code that only Inductor can make, empty when it can."""
    scaled = problem.scaled and not problem.spec.grouped
    if problem.op in INDUCTOR_ALONE or (scaled and problem.m > SKINNY_ROWS):
        return f"{GPU_ALONE[problem.op]} have Inductor's templates alone"
    # Inductor's own padding pass times a padded product, so a choice without one could be worse than default mode's.
    if problem.op in PADDED.ops and misaligned(problem):
        return "its rows do not start at multiples of 16 bytes, so a padded product has to be measured"
    return ""


@functools.cache
def missing() -> str:
    """The first of the needed libraries that is not installed, empty when all are."""
    return next((name for name in NEEDED if importlib.util.find_spec(name) is None), "")
