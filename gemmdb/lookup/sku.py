"""Rung `sku`: answers from measured rows of another SKU of the same arch, for example an H200's on an H100.

How much faster one SKU is depends on what bounds the kernel. If memory does, all configs scale alike, by the
bandwidths. If the multiprocessors do, each config scales by the number of waves of its programs on either SKU. The
truth lies between, so an answer must be as good as the best under both bounds; else the rung declines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from gemmdb.cost.machine import Machine, machine
from gemmdb.cost.transfer import programs
from gemmdb.hit import Hit
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.lookup.ask import Ask, Step
from gemmdb.lookup.near import choose, near, predict_corrected, predict_near
from gemmdb.lookup.neighbours import unfit
from gemmdb.lookup.policy_filter import gain, objection, required_gain
from gemmdb.lookup.prediction import Prediction, measured
from gemmdb.table.reader import Table
from gemmdb.table.verdict import TIE

MOST = 4
"""How many other SKUs are asked, the most similar first. A table may hold thousands."""
ALIKE = 4
"""A SKU with more than this many times the multiprocessors, or less than its inverse, says nothing."""


@dataclass(frozen=True, slots=True)
class _Scaled:
    """A prediction for another SKU, scaled to this one. `memory` and `compute`: times relative to ATen under each
    bound. `memory_us` and `compute_us`: ATen's microseconds under each bound."""

    memory: Mapping[Config, float]
    compute: Mapping[Config, float]
    memory_us: float
    compute_us: float

    def regret(self, config: Config) -> float:
        """How far `config` is behind the best under the worse bound."""
        return max(times[config] / min(times.values()) - 1 for times in (self.memory, self.compute))

    def ratio(self, config: Config) -> float:
        """The time relative to ATen under the worse bound."""
        return max(self.memory[config], self.compute[config])


def sku(ask: Ask) -> Step:
    """The best config of the same problem, or of its neighbours, on the most similar SKU of the arch. ATen's victory
    there is no answer if live tuning can decide, and neighbours on this SKU expect more of a kernel."""
    step = _asked(ask, ask.policy.near)
    if step.hit is None or step.hit.config != ATEN or ask.policy.on_miss != "live" or not ask.policy.near:
        return step
    here = predict_corrected(ask)
    best = ATEN if isinstance(here, str) else choose(ask, here)
    if best == ATEN:
        return step
    reason = f"{step.reason}, but neighbours on {ask.device.sku} expect a gain of {best.name}"
    return Step("sku", None, reason, step.evidence)


def _asked(ask: Ask, neighbours: bool) -> Step:
    """The answer; with `neighbours`, also from those of the problem."""
    if not ask.policy.sku:
        return Step("sku", None, "switched off by the policy")
    if ask.device.kind != "cuda":
        return Step("sku", None, "the rung covers only NVIDIA GPUs")
    here = machine(ask.device)
    if here is None:
        return Step("sku", None, f"it is unknown how {ask.device.sku} compares with other SKUs of its arch")
    reason = f"nothing was measured near this problem on another SKU of {ask.device.arch}"
    for other, there in islice(_others(ask, here), MOST):
        prediction = _prediction(ask, other, neighbours)
        if prediction is not None:
            step = _answer(ask, other, prediction, _scale(ask.problem, prediction, here, there))
            if step.hit:
                return step
            reason = step.reason
    return Step("sku", None, reason)


def near_unless_measured(ask: Ask) -> Step:
    """Rung `near`, which leaves to `sku` what another SKU measured itself. Neighbours on an H100 gained 1.865x over
    ATen, where rows of the problems on an H200 gained 1.896x (77 problems, `benchmarks.offtable sku`). If ATen won
    there, that may be for want of candidates, so a kernel that was not among them is served."""
    other = _elsewhere(ask)
    if left := _left(other):
        return Step("near", None, left)
    step = near(ask)
    if other is None or other.hit is None or step.hit is None or not _lost(ask, step.hit.config):
        return step
    return Step("near", None, f"{step.reason}; but another SKU measured it, and ATen won", step.evidence)


def left_to_sku(ask: Ask) -> str:
    """Why a rung with less telling rows leaves a problem to `sku`, which serves a kernel that won this very problem on
    another SKU; empty if it does not."""
    return _left(_elsewhere(ask))


def _elsewhere(ask: Ask) -> Step | None:
    """What `sku` says from rows of this very problem alone; None where it is not asked."""
    return _asked(ask, False) if ask.policy.near and ask.policy.sku and not ask.symbolic else None


def _left(other: Step | None) -> str:
    if other is None or other.hit is None or other.hit.config == ATEN:
        return ""
    return f"left to rung sku: {other.evidence['sku']} measured this very problem"


def _lost(ask: Ask, config: Config) -> bool:
    """Whether a kernel was timed for this very problem on the most similar SKU that measured it, and did not gain."""
    here = machine(ask.device) if config != ATEN else None
    for other, _ in islice(_others(ask, here), MOST) if here is not None else ():
        found = measured(replace(ask, query=replace(ask.query, device=other)))
        if found is not None:
            return config in found.estimates and found.gains.get(config, 0.0) < ask.policy.min_gain
    return False


def _others(ask: Ask, here: Machine) -> Iterator[tuple[Device, Machine]]:
    """The SKUs of the same arch in the tables, the most similar first: by multiprocessors, then bandwidth."""
    found: dict[str, tuple[Device, Machine]] = {}
    for table in ask.tables:
        for device in ask.read(Table.devices, table) or ():
            there = machine(device) if device.arch == ask.device.arch and device != ask.device else None
            if there is not None and 1 / ALIKE <= there.sms / here.sms <= ALIKE:
                found.setdefault(device.text, (device, there))
    return iter(sorted(found.values(), key=lambda pair: _difference(here, *pair)))


def _difference(here: Machine, device: Device, there: Machine) -> tuple[float, float, str]:
    return abs(here.sms - there.sms), abs(here.dram - there.dram), device.text


def _prediction(ask: Ask, other: Device, neighbours: bool) -> Prediction | None:
    """The prediction for the problem on the other SKU, from its own rows or its neighbours', for the configs that may
    be served here."""
    there = replace(ask, query=replace(ask.query, device=other))
    found = measured(there)
    if found is None and neighbours:
        guess = predict_near(there)
        found = guess if isinstance(guess, Prediction) else None
    if found is None:
        return None
    banned = unfit(ask)
    may = {c for c in found.gains if c not in banned and objection(ask, c) is None}
    return replace(found, estimates={c: one for c, one in found.estimates.items() if c == ATEN or c in may})


def _scale(problem: Problem, prediction: Prediction, here: Machine, there: Machine) -> _Scaled:
    cores = there.sms / here.sms
    compute = {}
    for config, ratio in prediction.ratios.items():
        count = programs(config, problem)
        waves = cores if count is None else -(-count // here.sms) / -(-count // there.sms)
        compute[config] = ratio * waves / cores
    return _Scaled(
        prediction.ratios,
        compute,
        prediction.aten_us * there.dram / here.dram,
        prediction.aten_us * cores * there.tensor / here.tensor,
    )


def _answer(ask: Ask, other: Device, prediction: Prediction, scaled: _Scaled) -> Step:
    if len(prediction.estimates) < 2:
        return Step("sku", None, f"no kernel that was timed on {other.sku} may be served here")
    best = min(scaled.memory, key=lambda c: (scaled.regret(c), c.spec.cost, c.text))
    regret, loss, ratio = scaled.regret(best), prediction.loss(best), scaled.ratio(best)
    aten_us = max(scaled.memory_us, scaled.compute_us)
    evidence: dict[str, Any] = {
        **prediction.evidence,
        "sku": other.sku,
        "measured_as": prediction.rung,
        "expected_loss": (1 + loss) * (1 + regret) - 1,
        "bounds_us": {"memory": scaled.memory_us, "compute": scaled.compute_us},
    }
    said = f"{best.name} on {other.sku}, at most {regret:.1%} behind the best under both bounds"
    if regret > TIE:
        return Step("sku", None, f"{said}: the bounds disagree about the best", evidence)
    if loss > ask.policy.near_loss:
        return Step("sku", None, f"{said}, but the answer there may lose {loss:.1%}", evidence)
    # Rows of another SKU are as uncertain as those of another toolchain, and without a trial as a model's answer.
    least = required_gain(ask.policy, False)
    needed = least if ask.confirming else max(least, ask.policy.model_gain)
    if best != ATEN and gain(ratio) < needed:
        unless = "" if ask.confirming else "unless a compile times it first, "
        said = f"{said}; {unless}a gain of {needed:.1%} is needed"
        if gain(ratio) >= least and ask.policy.on_miss == "live":
            return Step("sku", None, said, evidence)
        evidence["held_back"] = {"config": best.text, "gain": gain(ratio), "needed": needed}
        best, ratio, said = ATEN, 1.0, f"{said}: ATen is served"
    return Step("sku", Hit("sku", best, ratio * aten_us, 1 / ratio, prediction.table, evidence), said, evidence)
