"""Rung `model`: answers a problem on a GPU from a cost model of the kernels, if no measured row does.

The model ranks candidates that may never have been timed. Its ranking narrows live tuning. The rung serves a candidate
itself only if the expected gain over ATen is far beyond the model's error.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter

from gemmdb.cost import data
from gemmdb.cost.candidates import choices
from gemmdb.cost.data import OPS
from gemmdb.cost.features import ORDERS, TREE_OPS
from gemmdb.cost.machine import Machine, machine
from gemmdb.cost.model import FITTED
from gemmdb.cost.roofline import extra_us
from gemmdb.cost.terms import Estimator
from gemmdb.cost.trees import Corrected
from gemmdb.cost.work import Setting, Tile
from gemmdb.hit import Hit
from gemmdb.kernels.aten import stored_apart
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.layout import ITEM_SIZES, VECTOR_BYTES
from gemmdb.key.ops import FP8
from gemmdb.key.problem import Problem
from gemmdb.lookup.ask import Ask, Step
from gemmdb.lookup.certainty import margin
from gemmdb.lookup.claims import believed, least_of
from gemmdb.lookup.neighbours import unfit
from gemmdb.lookup.policy_filter import gain, objection
from gemmdb.table.reader import Table
from gemmdb.table.verdict import Verdict

LIVE_CANDIDATES = 4
"""How many configs besides ATen live tuning measures."""
FIRST = 8
"""How many of the cost model's first candidates the trees reorder. The best of all by the trees is nearly always among
them."""
DTYPES = ("bf16", "fp16", "int8", *FP8)


@dataclass(frozen=True, slots=True)
class MenuCandidate:
    """A config that may be served, with its tile, and the microseconds that the cost model alone expects."""

    config: Config
    tile: Tile
    us: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """A config and its expected microseconds."""

    config: Config
    us: float


@dataclass(frozen=True, slots=True)
class Candidates:
    """What the model expects at a problem: ATen's time in microseconds, and the fastest configs, best first.
    `corrected`: whether trees corrected the times."""

    aten_us: float
    best: tuple[Candidate, ...]
    corrected: bool = False


def model(ask: Ask) -> Step:
    """The answer of a modelled table, else the model's own ranking of its menu. It is served if the expected gain over
    ATen is at least the policy's `model_gain` and a gain for certain; less is enough if the caller times it first."""
    if not ask.policy.model:
        return Step("model", None, "switched off by the policy")
    found = _modelled(ask)
    if found is not None:
        return _from_table(ask, *found)
    ranked = rank(ask)
    if isinstance(ranked, str):
        return Step("model", None, ranked)
    evidence = {
        "modelled": True,
        "corrected": ranked.corrected,
        "aten_us": ranked.aten_us,
        "proposals": [{"config": one.config.text, "expected_us": one.us} for one in ranked.best],
    }
    best = ranked.best[0]
    ratio = best.us / ranked.aten_us
    reason = f"modelled, not measured: {best.config.name} is expected at {1 / ratio:.2f}x ATen"
    refusal = _refusal(ask, best.config, ratio)
    if refusal:
        return Step("model", None, f"{reason}; {refusal}", evidence)
    return Step("model", Hit("model", best.config, best.us, 1 / ratio, "model", evidence), reason, evidence)


def rank(ask: Ask, count: int = LIVE_CANDIDATES) -> Candidates | str:
    """The `count` servable candidates with the smallest expected times, or the reason why there are none.

    If trees were fitted on the arch, they reorder the first max(FIRST, `count`) of the cost model.
    """
    found = machine(ask.device)
    reason = "the model covers only NVIDIA GPUs of known archs" if found is None else unranked(ask.problem, found)
    if found is None or reason:
        return str(reason)
    setting = Setting.shared(ask.problem, found)
    corrected = Corrected.of(setting)
    if corrected is None and ask.problem.op in TREE_OPS:
        return f"the trees of {ask.problem.op} are missing"
    best = list(islice(allowed(ask, setting), count if corrected is None else max(count, FIRST)))
    if not best:
        return "no candidate may run on this problem"
    if corrected is None:
        return Candidates(FITTED.predict_aten(setting), tuple(_charged(ask, one.config, one.us) for one in best))
    order = sorted((corrected.us(one.tile), place) for place, one in enumerate(best))
    candidates = tuple(_charged(ask, best[place].config, us) for us, place in order[:count])
    return Candidates(corrected.aten_us(), candidates, corrected=True)


def _charged(ask: Ask, config: Config, us: float) -> Candidate:
    """The candidate with what its epilogue costs beyond a light one, which is what the model knows."""
    return Candidate(config, us + extra_us(ask.problem, ask.device, us))


def unranked(problem: Problem, known: Machine) -> str | None:
    """Why nothing is ranked for a problem on a machine; None if it is. Beyond what the formula covers, these are ops
    with trees of their own on the archs that these were fitted on."""
    if problem.op not in TREE_OPS:
        return uncovered(problem)
    if known.capability not in data.own()["capabilities"]:
        return f"products of the op {problem.op} are not modelled on sm{known.capability}"
    return outside(problem)


def uncovered(problem: Problem) -> str | None:
    """Why the formula, which needs no trees, does not cover a problem; None if it does."""
    return f"products of the op {problem.op} are not modelled" if problem.op not in OPS else outside(problem)


def outside(problem: Problem) -> str | None:
    """Why no model covers a problem, whatever its op; None if one can."""
    if problem.int4 is not None:
        return "products with an int4 weight are not modelled"
    if problem.scales == "block":
        return "scales of blocks are not modelled"
    if problem.empty:
        return "there is nothing to compute in a product of size zero"
    if problem.a.dtype not in DTYPES:
        return f"products of {problem.a.dtype} are not modelled"
    for operand in (problem.a, problem.b):
        if operand.layout.order not in ORDERS or operand.layout.align * ITEM_SIZES[operand.dtype] < VECTOR_BYTES:
            return "rows that do not start at multiples of 16 bytes are not modelled"
    return "output rows that do not start at multiples of 16 bytes are not modelled" if stored_apart(problem) else None


def allowed(ask: Ask, setting: Setting) -> Iterator[MenuCandidate]:
    """The candidates that may be served, in the cost model's order."""
    us = Estimator.of(FITTED, setting).us
    ranked = sorted([(us(one.tile), one.tile, one) for one in choices(setting)], key=itemgetter(0, 1))
    banned: Collection[Config] = unfit(ask)
    for expected, tile, choice in ranked:
        config = choice.config
        if config not in banned and objection(ask, config) is None:
            yield MenuCandidate(config, tile, expected)


def _refusal(ask: Ask, config: Config, ratio: float) -> str:
    """Why a config with the expected time `ratio` relative to ATen is not served; empty if it is."""
    if ask.policy.on_miss == "live":
        return "live tuning decides among the candidates"
    own, needed = ask.problem.epilogue, _needed(ask, config)
    if own is not None and own.reads and not ask.confirming:
        return "ATen is served: nobody has compared the model with kernels whose epilogue reads other tensors"
    if math.isinf(needed):
        return f"ATen is served: nobody has compared the model with held-out products of the op {ask.problem.op}"
    return f"ATen is served: an expected gain of {needed:.0%} is needed" if gain(ratio) < needed else ""


def _needed(ask: Ask, config: Config) -> float:
    """The gain that the model must expect of a config: that of unverified rows if the caller times it first, else the
    policy's, and what makes it a gain for certain."""
    if ask.confirming:
        return max(ask.policy.min_gain, ask.policy.unverified_gain)
    return max(ask.policy.model_gain, math.expm1(margin(ask, config)))


def _modelled(ask: Ask) -> tuple[Table, Verdict] | None:
    """The first table with a modelled verdict, and the verdict. Its toolchain class makes no difference, since nothing
    was measured."""
    for table in ask.tables:
        for verdict in ask.read(Table.verdicts, table, ask.problem, ask.device) or ():
            fits = verdict.protocol.clock == "model" and verdict.protocol.l2 == ask.query.l2
            if fits and believed(ask, table, verdict):
                return table, verdict
    return None


def tabled(ask: Ask) -> list[Config]:
    """The servable configs that a modelled table has for the problem, in its order; empty without such a table."""
    found = _modelled(ask)
    ratios = {} if found is None else _ratios(ask, *found)
    return sorted((config for config in ratios if config != ATEN), key=lambda config: ratios[config])


def _ratios(ask: Ask, table: Table, verdict: Verdict) -> dict[Config, float]:
    """The expected times, relative to ATen, of ATen and of the configs that may be served."""
    pooled = ask.read(Table.pooled, table, ask.problem, ask.device, ask.query.l2, verdict.klass) or ()
    banned, least = unfit(ask), least_of(ask) / verdict.aten_us
    return {
        one.config: one.ratio
        for one in pooled
        if one.servable
        and one.ratio >= least
        and one.config not in banned
        and (one.config == ATEN or objection(ask, one.config) is None)
    }


def _from_table(ask: Ask, table: Table, verdict: Verdict) -> Step:
    ratios = _ratios(ask, table, verdict)
    best = min((config for config in ratios if config != ATEN), key=lambda config: ratios[config], default=ATEN)
    ratio = ratios.get(best, 1.0)
    evidence = {
        "modelled": True,
        "protocol": verdict.protocol.text,
        "aten_us": verdict.aten_us,
        "proposals": [
            {"config": config.text, "expected_us": ratios[config] * verdict.aten_us}
            for config in sorted(ratios, key=lambda config: ratios[config])
            if config != ATEN
        ][:LIVE_CANDIDATES],
        "table": str(table.path),
    }
    reason = f"modelled, not measured: {best.name} is expected at {1 / ratio:.2f}x ATen"
    if ask.policy.on_miss == "live" and best != ATEN:
        return Step("model", None, f"{reason}; {_refusal(ask, best, ratio)}", evidence)
    if best != ATEN and (refusal := _refusal(ask, best, ratio)):
        evidence["held_back"] = {"config": best.text, "gain": gain(ratio), "needed": _needed(ask, best)}
        best, ratio, reason = ATEN, 1.0, f"{reason}; {refusal}"
    hit = Hit("model", best, ratio * verdict.aten_us, 1 / ratio, str(table.path), evidence)
    return Step("model", hit, reason, evidence)
