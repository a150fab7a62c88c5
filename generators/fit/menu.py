"""Choice of the cost model's menu: a few tiles that include the best tile of nearly every measured problem."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from gemmdb.cost.candidates import FITTED, MENU_OF
from gemmdb.cost.work import tile_of
from gemmdb.generators.fit.cost_model import Sample
from gemmdb.kernels import hardware
from gemmdb.kernels.config import ATEN, Config
from gemmdb.lookup.similar import kind

ROWS = (1, 2, 8, 16, 32, 64, 256, 2**31 - 1)
"""Largest M of each menu."""
SHAPES = 28
"""Most tiles in a menu."""
PORTABLE = 14
"""Number of these chosen among tiles that run without Hopper's TMA."""
REST_ROWS = (1, 16, 64, 256, 2**31 - 1)
REST_CONFIGS = 8
"""Menu size for problems that the model does not cover. Fewer of them were measured, and configs are used unchanged."""
MIN_GAIN = 0.00005
"""A tile that improves the mean logarithm by less is skipped."""
MISSING_LOSS = math.log(2.0)
"""Loss (in logarithms) of a problem on which none of the chosen tiles was measured."""


def menus(found: Iterable[Sample]) -> dict[str, dict[int, tuple[str, ...]]]:
    """Return the chosen tiles by menu name, which several ops may share, and largest M, each as the text of one config.
    The stages and the split come from one problem; `gemmdb.cost.candidates` adapts them to others."""
    classes: dict[tuple[str, int], list[Sample]] = defaultdict(list)
    for sample in found:
        if tile_of(sample.config) is not None:
            limit = next(rows for rows in ROWS if sample.problem.m <= rows)
            classes[MENU_OF[sample.problem.op], limit].append(sample)
    menus: dict[str, dict[int, tuple[str, ...]]] = {}
    for name, limit in sorted(classes):
        menus.setdefault(name, {})[limit] = _menu(classes[name, limit])
    for by_rows in menus.values():
        largest = max(by_rows)
        by_rows.setdefault(ROWS[-1], by_rows[largest])
    return menus


def rest(found: Iterable[Sample]) -> dict[str, dict[int, tuple[str, ...]]]:
    """Return config texts by kind of problem that the model does not cover, and largest M: each config is the one that
    improves most on ATen and the configs before it."""
    classes: dict[tuple[str, int], list[Sample]] = defaultdict(list)
    for sample in found:
        limit = next(rows for rows in REST_ROWS if sample.problem.m <= rows)
        classes[kind(sample.problem), limit].append(sample)
    menus: dict[str, dict[int, tuple[str, ...]]] = {}
    for name, limit in sorted(classes):
        costs: dict[str, dict[object, float]] = defaultdict(dict)
        for sample in classes[name, limit]:
            costs[sample.config.text][sample.problem] = -math.log(sample.share)
        chosen: dict[str, None] = {ATEN.text: None}
        _extend(chosen, costs, list(costs), {sample.problem for sample in classes[name, limit]}, 1 + REST_CONFIGS)
        menus.setdefault(name, {})[limit] = tuple(text for text in chosen if text != ATEN.text)
    return menus


def _menu(found: Sequence[Sample]) -> tuple[str, ...]:
    costs: dict[str, dict[object, float]] = defaultdict(dict)
    texts: dict[str, str] = {}
    for sample in found:
        name = shape(sample.config)
        texts[name] = min(texts.get(name, sample.config.text), sample.config.text)
        before = costs[name].get(sample.problem, MISSING_LOSS)
        costs[name][sample.problem] = min(before, -math.log(sample.share))
    problems = {sample.problem for sample in found}
    portable = [name for name in costs if "load=tma" not in name and name.split()[0] in _PORTABLE]
    chosen: dict[str, None] = {}
    _extend(chosen, costs, portable, problems, PORTABLE)
    _extend(chosen, costs, list(costs), problems, SHAPES)
    return tuple(sorted(texts[name] for name in chosen))


_PORTABLE = ("triton:tile", "triton:narrow", "triton:gemv")


def _extend(
    chosen: dict[str, None], costs: Mapping[str, Mapping[object, float]], names: Sequence[str],
    problems: Iterable[object], most: int,
) -> None:  # fmt: skip
    """Add names to `chosen`, each time the one that lowers the mean cost of the best chosen one the most."""
    now = {p: min((costs[name].get(p, MISSING_LOSS) for name in chosen), default=MISSING_LOSS) for p in problems}
    while len(chosen) < most:
        gains = {
            name: sum(max(now[p] - cost, 0.0) for p, cost in costs[name].items())
            for name in names
            if name not in chosen
        }
        best = max(gains, key=lambda name: (gains[name], name), default=None)
        if best is None or gains[best] < MIN_GAIN * len(now):
            return
        chosen[best] = None
        now.update({p: min(now[p], cost) for p, cost in costs[best].items()})


def shape(config: Config) -> str:
    """Return the config without the parameters that are fitted to a problem: the split-K factor, and the stages of
    tiles as far as they follow from the number of programs per SM."""
    tile = tile_of(config)
    if tile is None or tile.kernel not in FITTED:
        return config.text
    kept = [f"{name}={value}" for name, value in config.params if name not in ("split_k", "stages", "dequant")]
    stage = tile.k * (tile.m + tile.n)
    together = hardware.SHARED_BYTES // (stage * max(tile.stages - 1, 1))
    return f"{config.name} {' '.join(kept)} {'split' if tile.split > 1 else 'whole'} {min(together, 16).bit_length()}"
