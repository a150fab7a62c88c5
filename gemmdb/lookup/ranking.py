"""Ranks candidates, including untimed ones, with a cost model of GPU kernels."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from operator import itemgetter
from typing import NamedTuple

from gemmdb.cost import data, misaligned
from gemmdb.cost.candidates import choices
from gemmdb.cost.data import OPS
from gemmdb.cost.features import ORDERS, TREE_OPS
from gemmdb.cost.machine import Machine, machine
from gemmdb.cost.model import FITTED
from gemmdb.cost.roofline import extra_us
from gemmdb.cost.terms import Estimator
from gemmdb.cost.trees import Corrected
from gemmdb.cost.work import Setting, Tile, tile_of
from gemmdb.kernels.aten import stored_apart
from gemmdb.kernels.config import Config
from gemmdb.kernels.hardware import SHALLOW_DEPTH
from gemmdb.kernels.menus.tile import shallow_tiles
from gemmdb.kernels.rules import shallow
from gemmdb.key.layout import ITEM_SIZES, VECTOR_BYTES
from gemmdb.key.ops import FP8
from gemmdb.key.problem import Problem
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.neighbours import unfit
from gemmdb.rejected import Rejected

LIVE_CANDIDATES = 4
"""Number of configs, besides ATen, that live tuning measures."""
TREE_CANDIDATES = 8
"""Number of the cost model's top candidates that the trees reorder. The trees' overall best is nearly always among
them."""
DTYPES = ("bf16", "fp16", "int8", *FP8)


class Ranked(NamedTuple):
    """A servable config, with its tile and its expected time in microseconds."""

    config: Config
    tile: Tile
    us: float


class Ranking(NamedTuple):
    """The model's ranking at a problem: ATen's expected microseconds, and the fastest configs, best first. `corrected`:
    whether trees corrected the times."""

    aten_us: float
    best: tuple[Ranked, ...]
    corrected: bool


def rank(ask: Ask, count: int = LIVE_CANDIDATES) -> Ranking | Rejected:
    """Return the `count` servable candidates with the lowest expected times, or the reason why there are none.

    If trees were fitted for the arch, they reorder the cost model's top max(TREE_CANDIDATES, `count`).
    """
    return _ranked(ask, count, ask.problem, misaligned.Slower())


def rank_misaligned(ask: Ask) -> Ranking | Rejected:
    """Return the same for a problem whose rows may be misaligned: it is ranked as the aligned problem, whose times are
    scaled, or by its bytes if K is shallow. These are a rough guess, so the best config has to be benchmarked before it
    is served."""
    if misaligned.is_misaligned(ask.problem) and shallow(ask.problem):
        return _shallow(ask)
    return _ranked(ask, LIVE_CANDIDATES, misaligned.aligned(ask.problem), misaligned.slower(ask.problem))


def _shallow(ask: Ask) -> Ranking | Rejected:
    """Return the ranking of a misaligned problem with a shallow K: tiles of one step, as a build tries them."""
    tiles = ((config, tile_of(config)) for config in shallow_tiles(ask.problem, ask.device))
    aten_us, us = misaligned.shallow_us(ask.problem, ask.device)
    us += extra_us(ask.problem, ask.device, us)
    best = (
        Ranked(config, tile, us)
        for config, tile in tiles
        if tile is not None and config not in unfit(ask) and ask.rejection(config) is None
    )
    found = tuple(islice(best, LIVE_CANDIDATES))
    return Ranking(aten_us, found, False) if found else Rejected("no candidate may run on this problem")


def _ranked(ask: Ask, count: int, modelled: Problem, slower: misaligned.Slower) -> Ranking | Rejected:
    """Return the ranking for a problem that is `slower` than the `modelled` one."""
    found = machine(ask.device)
    if found is None:
        return Rejected("the model covers only NVIDIA GPUs of known archs")
    if rejected := _unranked(modelled, found):
        return rejected
    setting = Setting.shared(modelled, found)
    corrected = Corrected.of(setting)
    if corrected is None and ask.problem.op in TREE_OPS:
        return Rejected(f"the trees of {ask.problem.op} are missing")
    best = list(islice(allowed(ask, setting), count if corrected is None else max(count, TREE_CANDIDATES)))
    if not best:
        return Rejected("no candidate may run on this problem")
    if corrected is None:
        aten_us, order = FITTED.predict_aten(setting), [(one.us, place) for place, one in enumerate(best)]
    else:
        aten_us, order = (
            corrected.aten_us(),
            sorted((corrected.us(one.tile), at) for at, one in enumerate(best))[:count],
        )
    # The model includes light epilogues. Add the extra cost of this one.
    expected = [(best[place], slower.ours * us) for us, place in order]
    charged = [(one, us + extra_us(ask.problem, ask.device, us)) for one, us in expected]
    return Ranking(slower.aten * aten_us, tuple(one._replace(us=us) for one, us in charged), corrected is not None)


def _unranked(problem: Problem, known: Machine) -> Rejected | None:
    """Return why the model cannot rank a problem on a machine. Ops with their own trees are also ranked, on the archs
    that these were fitted on."""
    if problem.op not in TREE_OPS:
        return uncovered(problem)
    if known.capability not in data.own()["capabilities"]:
        return Rejected(f"GEMMs of the op {problem.op} are not modelled on sm{known.capability}")
    return outside(problem)


def uncovered(problem: Problem) -> Rejected | None:
    """Return why the formula, which needs no trees, does not cover a problem."""
    if problem.op not in OPS:
        return Rejected(f"GEMMs of the op {problem.op} are not modelled")
    return outside(problem)


def outside(problem: Problem) -> Rejected | None:
    """Return why no model covers a problem, regardless of its op."""
    if problem.int4 is not None:
        return Rejected("GEMMs with an int4 weight are not modelled")
    if problem.scales == "block":
        return Rejected("block scales are not modelled")
    if problem.empty:
        return Rejected("there is nothing to compute in a GEMM of size zero")
    if problem.a.dtype not in DTYPES:
        return Rejected(f"GEMMs of {problem.a.dtype} are not modelled")
    if shallow(problem):
        return Rejected(f"a K of at most {SHALLOW_DEPTH} is one step of a kernel, which is not modelled")
    for operand in (problem.a, problem.b):
        if operand.layout.order not in ORDERS or operand.layout.align * ITEM_SIZES[operand.dtype] < VECTOR_BYTES:
            return Rejected("rows that do not start at multiples of 16 bytes are not modelled")
    apart = stored_apart(problem)
    return Rejected("output rows that do not start at multiples of 16 bytes are not modelled") if apart else None


def allowed(ask: Ask, setting: Setting) -> Iterator[Ranked]:
    """Yield the servable candidates in the cost model's order."""
    us = Estimator.of(FITTED, setting).us
    ranked = sorted([(us(one.tile), one.tile, one) for one in choices(setting)], key=itemgetter(0, 1))
    banned = unfit(ask)
    for expected, tile, choice in ranked:
        config = choice.config
        if config not in banned and ask.rejection(config) is None:
            yield Ranked(config, tile, expected)
