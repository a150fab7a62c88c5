"""Regression trees on top of the cost model: they predict how far a measured time is from the model's time.

`gemmdb.generators.fit.trees` fits them to the rows of some archs, and they are used on these archs only: a tree cannot
extrapolate, so on another GPU it would apply the errors of the fitted one. The data are JSON files, each read at its
first use.
"""

from __future__ import annotations

import functools
import json
import logging
import math
from dataclasses import dataclass
from pathlib import Path

from gemmdb.cost import data
from gemmdb.cost.features import (
    COUNTS,
    FEATURES,
    OVER,
    SHAPE,
    TREE_OPS,
    of_aten,
    of_counts,
    of_problem,
    of_shape,
    over,
)
from gemmdb.cost.model import FITTED
from gemmdb.cost.terms import Estimator
from gemmdb.cost.work import Setting, Tile
from gemmdb.kernels.trees import Trees, parse

LOG = logging.getLogger("gemmdb")
DATA = Path(__file__).with_name("trees.json")
"""The trees of most ops. Those of an op of `features.TREE_OPS` are beside it: `trees-OP.json`."""


@dataclass(frozen=True, slots=True)
class Corrected:
    """The cost model's times on one problem and machine, corrected by the trees. `left`: the leaves that are reachable
    for that problem."""

    setting: Setting
    trees: Trees
    left: int

    @classmethod
    def of(cls, setting: Setting) -> Corrected | None:
        """The corrected model for a setting; None if no trees were fitted to its op on its machine."""
        apart = setting.problem.op in TREE_OPS
        known = setting.machine.capability in (data.own()["capabilities"] if apart else data.CAPABILITIES)
        trees = shipped(setting.problem.op if apart else "") if known else None
        return None if trees is None else cls(setting, trees, trees.reached(trees.every, of_problem(setting)))

    def us(self, tile: Tile) -> float:
        """Microseconds of a tile."""
        estimator, trees = Estimator.of(FITTED, self.setting), self.trees
        terms = estimator.terms(tile)
        counts = estimator.counts(terms)
        us = estimator.of_counts(terms, counts)
        shape = trees.fixed(tile, functools.partial(of_shape, tile), SHAPE)
        left = trees.reached(self.left & shape, (over(self.setting, us),), OVER)
        return us * math.exp(trees.total(trees.reached(left, of_counts(self.setting, terms, counts), COUNTS)))

    def aten_us(self) -> float:
        """Microseconds of ATen."""
        us = FITTED.predict_aten(self.setting)
        return us * math.exp(self.trees.total(self.trees.reached(self.left, of_aten(self.setting, us), OVER)))


@functools.cache
def shipped(op: str = "") -> Trees | None:
    """The trees that come with the package: those of an op of `features.TREE_OPS`, or those of the others. None, with a
    warning, if the file is missing or damaged; the cost model then works without them."""
    path = DATA.with_name(f"{DATA.stem}-{op}.json") if op else DATA
    try:
        return parse(json.loads(path.read_bytes()), FEATURES)
    except (OSError, ValueError, RecursionError) as error:
        LOG.warning("gemmdb: the cost model goes without its trees: %s: %s", path.name, error)
        return None
