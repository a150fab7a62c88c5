"""Configs that the caller cannot carry out: a rung that would serve one answers without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gemmdb.hit import Hit
from gemmdb.kernels.config import ATEN, Config
from gemmdb.lookup.ask import Ask, Step

ATTEMPTS = 16
"""The most configs that are left out of one answer: a hostile table could hold thousands that cannot run."""


def answered(rung: Callable[[Ask], Step], ask: Ask) -> Step:
    """The step of `rung` without what `ask.excluded` rules out; the evidence lists that under `left_out`, with reasons.

    Only configs that the rung is about to serve are asked about: a reason may depend on the rows that a config is to
    serve, and a prediction still compares with all others. After ATTEMPTS of them the hit may name one more: the
    caller then falls back to ATen.
    """
    step = rung(ask)
    while len(ask.left_out) < ATTEMPTS and (found := _excluded(ask, step.hit)) is not None:
        config, reason = found
        ask = replace(ask, left_out={**ask.left_out, config: reason})
        step = rung(ask)
    if not ask.left_out or step.hit is None:
        return step
    evidence = {**step.hit.evidence, "left_out": {config.text: reason for config, reason in ask.left_out.items()}}
    return replace(step, hit=replace(step.hit, evidence=evidence), evidence=evidence)


def _excluded(ask: Ask, hit: Hit | None) -> tuple[Config, str] | None:
    """The first config of a hit that is ruled out, and why; ATen never is."""
    if hit is None or ask.excluded is None:
        return None
    for config, rows in hit.kernels(ask.query.ranges):
        if config != ATEN and (reason := ask.excluded(config, rows)):
            return config, reason
    return None
