"""Rung `invariant`: with `Policy.batch_invariant`, all kernels of a GEMM add its products in one order along K, so that
the bits of a row of C do not depend on M.

The order is chosen once for N, K, the dtypes, the layout of B and the numerics, by the times at SIZES. At each M, the
kernel with that order and the lowest expected time is served, even where ATen is faster: the order of cuBLAS depends on
M. Where nothing is known, a default kernel with that order is served.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from gemmdb.cost.transfer import Scale, member_of
from gemmdb.hit import Hit, Range
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.hardware import BAND_ROWS, SKINNY_ROWS
from gemmdb.kernels.rules import reject_empty, reject_strides
from gemmdb.kernels.triton import sum_order
from gemmdb.kernels.triton.sum_order import SumOrder
from gemmdb.key.layout import contiguous
from gemmdb.key.operands import Operand
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup import lowering, symbolic
from gemmdb.lookup.acceptance.near import predict
from gemmdb.lookup.ask import Ask, Step, Within
from gemmdb.lookup.neighbours import unfit
from gemmdb.lookup.prediction import Prediction, measured, remembered
from gemmdb.lookup.ranking import rank
from gemmdb.rejected import Rejected

SIZES = {1: 1.0, 8: 1.0, 16: 1.0, 32: 1.0, 64: 1.0, 256: 0.25, 1024: 0.25, 4096: 0.25}
"""The sizes of M that choose an order, with their weights. Decoding counts most."""
TOPS = (16, 32, 64, 128, 256)
"""A symbolic M gets a kernel for the sizes up to each of these, and one for the rest."""
OPEN_ROWS = 2048
"""The size that chooses the kernel of the last interval of an open range."""
UNMEASURED = 1.1
"""A kernel that was not measured for the GEMM must be expected to be faster by this factor than one that was."""
OTHER_EPILOGUE = 1.02
"""The same for a kernel that was measured for the GEMM without its bias and epilogue."""
SLICED = 1.15
"""How much slower a kernel is expected to be if one program adds up slices of K."""

_Found = tuple[Config, float, float, str, str]
"""A config, its expected microseconds and ATen's, the rung that knows it, and the table."""


def rejection(query: Query) -> Rejected | None:
    """Return why batch invariance does not cover a query."""
    problem, device = query.problem, query.device
    if device.kind != "cuda":
        return Rejected(f"batch invariance needs a CUDA GPU, not a {device.kind}")
    if not sum_order.possible(problem, device):
        return Rejected(f"the summation order of kernels is not known on {device.arch}")
    if set(query.symbolic) - {"m"}:
        return Rejected("batch invariance covers no symbolic N or K")
    if found := reject_empty(problem):
        return found
    if not sum_order.known(problem):
        ops, dtypes = " and ".join(sum_order.OPS), " and ".join(sum_order.DTYPES)
        return Rejected(f"batch invariance covers {ops} of {dtypes}")
    return reject_strides(problem)


def invariant(ask: Ask) -> Step:
    """Rung `invariant`: serve a kernel with the order of the GEMM, for each M or for the intervals of a symbolic M; a
    miss if batch invariance does not cover the query, or if the policy denies every kernel with that order."""
    if rejected := rejection(ask.query):
        return Step("invariant", None, rejected.reason)
    order = chosen(ask)
    found = _over_rows(ask, order) if ask.symbolic else _fixed(ask, order)
    if isinstance(found, Rejected):
        return Step("invariant", None, f"no kernel with the summation order {order.text} may be served: {found}")
    return Step("invariant", found, f"{found.config.name} has the summation order {order.text}", found.evidence)


def chosen(ask: Ask) -> SumOrder:
    """Return the order of a GEMM that `rejection` lets pass. It does not depend on M, nor on what differs between the
    graphs of a program for several M: A's layout, the epilogue, the bias, and what failed to compile."""
    query = replace(ask.query, problem=_representative(ask.problem), ranges={})
    return remembered(replace(ask, query=query, left_out={}, within=None), "summation order", _choose)


def _representative(problem: Problem) -> Problem:
    a = Operand(problem.a.dtype, contiguous(1, problem.k, problem.a.dtype))
    return replace(
        problem, op="mm", m=1, a=a, bias=None, scalars="unit", fusion="none", constant=False,
    )  # fmt: skip


def _choose(ask: Ask) -> SumOrder:
    orders = sum_order.possible(ask.problem, ask.device)
    return min(orders, key=lambda order: (_cost(ask, order), order))


def _cost(ask: Ask, order: SumOrder) -> float:
    """Return the weighted sum of the log times at SIZES, relative to ATen's."""
    total = 0.0
    for m, weight in SIZES.items():
        found = _best(_at(ask, m, order, None), order)
        total += math.inf if isinstance(found, Rejected) else weight * math.log(_rated(found)[0])
    return total


def _at(ask: Ask, m: int, order: SumOrder, rows: Range | None) -> Ask:
    """Return the lookup for one size, restricted to kernels with the order. `rows`: the range of M that they serve."""
    query = replace(ask.query, problem=ask.problem.resized(m, ask.problem.n, ask.problem.k), ranges={})
    over = replace(query, ranges={"m": rows}) if rows is not None else None

    def rejected(config: Config, problem: Problem) -> Rejected | None:
        if sum_order.sum_order(config, problem, query.device) != order:
            return Rejected("adds the products in another order")
        if config.spec.maps(config):
            return Rejected("tensor maps need an alignment that may be missing when the GEMM is lowered")
        if over is None:
            return lowering.lowering_rejection(config, problem)
        if not lowering.joins(config, problem):
            return Rejected("cannot be one of several kernels of a symbolic M")
        return lowering.rejection(config, replace(over, problem=problem), rows)

    # The policy's own rule excludes all kernels that cut K.
    policy = replace(ask.policy, batch_invariant=False)
    return replace(ask, query=query, policy=policy, within=Within((order, rows), rejected))


def _best(at: Ask, order: SumOrder) -> _Found | Rejected:
    """Return the fastest kernel with the order at one size."""
    known = list(_known(at))
    if known and (order.slices == 1 or at.problem.m <= SKINNY_ROWS):
        return min(known, key=_rated)
    default = _default(at, order)
    if isinstance(default, Rejected):
        return min(known, key=_rated) if known else default
    return min([*known, default], key=_rated)


def _rated(found: _Found) -> tuple[float, str, str]:
    """Each source knows a time of ATen's: the ratio compares with those of other sources."""
    config, us, aten_us, rung, _ = found
    return us / aten_us * {"exact": 1.0, "epilogue": OTHER_EPILOGUE}.get(rung, UNMEASURED), rung, config.text


def _known(at: Ask) -> Iterator[_Found]:
    """Yield the fastest kernel by each source: rows of the GEMM, of its neighbours, and the cost model; and the same of
    the GEMM without its bias and epilogue, which add about as much to all kernels."""
    plain = replace(at.problem, op="mm", bias=None, scalars="unit", fusion="none")
    for one in (at,) if plain == at.problem else (at, at.at(plain)):
        rows, nearby = measured(one), predict(one) if one.policy.near else None
        if rows is not None:
            rung = "exact" if one is at else "epilogue"
            yield from _first(at, rows, rung, {config: known.log for config, known in rows.estimates.items()})
        if isinstance(nearby, Prediction):
            scores = {config: known.score for config, known in nearby.estimates.items() if known.full}
            yield from _first(at, nearby, "near", scores)
    ranking = rank(at) if at.policy.model else None
    if ranking is not None and not isinstance(ranking, Rejected):
        first = ranking.best[0]
        yield first.config, first.us, ranking.aten_us, "model", "model"


def _first(at: Ask, found: Prediction, rung: str, scores: dict[Config, float]) -> Iterator[_Found]:
    """Yield the config with the lowest score that may serve the lookup, if there is one."""
    ours = [(score, config.text, config) for config, score in scores.items() if config != ATEN]
    banned = unfit(at) if rung != "exact" else ()
    config = next((one for *_, one in sorted(ours) if one not in banned and at.rejection(one) is None), None)
    if config is not None:
        yield config, found.ratios[config] * found.aten_us, found.aten_us, rung, found.table


def _default(at: Ask, order: SumOrder) -> _Found | Rejected:
    """Return the default with the lowest expected time. The cost model does not know that slices need more
    registers."""
    rejected, found = Rejected("there is no default"), list[_Found]()
    scale = Scale.of(at.problem, at.device)
    for config in _defaults(at.problem, order):
        why = Rejected("it was wrong or crashed near this problem") if config in unfit(at) else at.rejection(config)
        if why is None:
            us = scale.us(member_of(config)) * (SLICED if "slices" in config.values else 1.0)
            found.append((config, us, scale.us(member_of(ATEN)), "model", "model"))
        else:
            rejected = why
    return min(found, key=_rated) if found else rejected


def _defaults(problem: Problem, order: SumOrder) -> Iterator[Config]:
    """Yield kernels with the order, for any layout: for few rows with the weight as left operand, which has enough rows
    for the instructions of a warp group."""
    few, groups = problem.m <= 2 * SKINNY_ROWS, order.unit == sum_order.WARP_GROUP
    if few:
        shapes = [(m, 64, 1, 4) if groups else (m, 64, 0, 2) for m in (16, 32, 64)]
    else:
        shapes = [(64, 64, 0, 4), (64, 128, 0, 4), (128, 128, 0, 8), (64, 64, 0, 2)]
    slices = {"slices": order.slices} if order.slices > 1 else {}
    for (m, n, swap, warps), (depth, stages) in product(shapes, ((64, 4), (64, 3), (128, 2))):
        shape = {"block_m": m, "block_n": n, "block_k": depth, "swap": swap, "warps": warps, "stages": stages}
        if slices:
            yield _tile(split_k=order.slices, reduce="fixup", **shape)
        yield _tile(**slices, **shape)


def _tile(**values: int | str) -> Config:
    given = {"split_k": 1, "reduce": "none", **values}
    return Config.of("triton", "tile", group_m=BAND_ROWS, load="pointer", dequant="cast", **given)


def _fixed(ask: Ask, order: SumOrder) -> Hit | Rejected:
    found = _best(_at(ask, ask.problem.m, order, None), order)
    return found if isinstance(found, Rejected) else _hit(order, found)


def _over_rows(ask: Ask, order: SumOrder) -> Hit | Rejected:
    """Return the hit for a symbolic M."""
    parts: list[tuple[Range, int, _Found]] = []
    for low, high in intervals(*ask.query.ranges["m"]):
        size = max(low, min(high or OPEN_ROWS, OPEN_ROWS), 1)
        found = _best(_at(ask, size, order, (low, high)), order)
        if isinstance(found, Rejected):
            return found
        if parts and parts[-1][2][0] == found[0]:
            low = parts.pop()[0][0]
        parts.append(((low, high), size, found))
    size, here = next((size, found) for (_, high), size, found in parts if high is None or ask.problem.m <= high)
    kernels = [
        {"m": [low] if high is None else [low, high], "config": found[0].text} for (low, high), _, found in parts
    ]
    hit = _hit(order, _moved(here, size, ask), range=symbolic.ranges_of(ask), kernels=kernels)
    limits = [high for (_, high), *_ in parts[:-1]]
    branches = tuple(zip([*limits, None], [found[0] for *_, found in parts], strict=True))
    return replace(hit, branches=branches if limits else ())


def _moved(found: _Found, size: int, ask: Ask) -> _Found:
    """Return a kernel that was chosen for a size of M with its expected times at the hint."""
    config, us, aten_us, rung, table = found
    there = Scale.of(ask.problem.resized(size, ask.problem.n, ask.problem.k), ask.device)
    here, ours, aten = Scale.of(ask.problem, ask.device), member_of(config), member_of(ATEN)
    return config, us * here.us(ours) / there.us(ours), aten_us * here.us(aten) / there.us(aten), rung, table


def intervals(low: int, high: int | None) -> list[Range]:
    """Return the ranges of M that get a kernel each, in ascending order."""
    tops = [top for top in TOPS if low <= top and (high is None or top < high)]
    lows = [low, *(top + 1 for top in tops)]
    return list(zip(lows, [*tops, high], strict=True))


def _hit(order: SumOrder, found: _Found, **evidence: Any) -> Hit:
    config, us, aten_us, rung, table = found
    return Hit(rung, config, us, aten_us / us, table, {"sum_order": order.text, **evidence})
