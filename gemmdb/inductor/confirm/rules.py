"""Which answers are confirmed, and which are not, with the reason."""

from __future__ import annotations

import torch

from gemmdb.inductor.adapter import ranks
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Query
from gemmdb.settings import QUICKLY, Policy

RUNGS = ("near", "sku", "model")
"""The rungs whose answers no measurement of the very problem stands behind."""
SLOW_S = 20.0
"""A policy that lets a graph wait this many seconds gets what compiles slowly confirmed, too."""
FREE_BYTES = 2**30
"""GPU memory that must stay free beside what confirming takes."""


def objection(query: Query, policy: Policy) -> str:
    """Why the answer to a query is not confirmed, known before it is looked up; empty where it is."""
    if not policy.confirm:
        return "switched off by the policy"
    if any(low != high for low, high in query.ranges.values()):
        return "its sizes are symbolic"
    if ranks.several():
        return "the ranks of a job could come to different kernels"
    if query.device.kind != "cuda" and policy.confirm_s < SLOW_S:
        kind = query.device.kind.upper()
        return f"on a {kind} that takes {SLOW_S:.0f} s, and {policy.confirm_s:g} s are allowed"
    return ""


def too_slow(config: Config, policy: Policy) -> str:
    """Why a config is not compiled to be confirmed, empty where it is."""
    if config.spec.cost > QUICKLY and policy.confirm_s < SLOW_S:
        return "nvcc takes half a minute"
    return ""


def hindrance(device: Device) -> str:
    """Why nothing may be timed on the device now, empty when it may."""
    if device.kind == "cuda" and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured"
    return ""


def unmeasured(rung: str, config: Config | None) -> bool:
    """Whether an answer of a rung is to be confirmed. ATen is what runs without gemmdb."""
    return rung in RUNGS and config not in (None, ATEN)
