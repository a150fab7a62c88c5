"""Regression trees on top of the cost model: by how much a measured time is off what the model expects.

Fitted by `gemmdb.generators.fit_trees` to the rows of some archs, and used on these alone: a tree knows nothing beyond
the values that it was fitted to, so on another GPU it would correct by what was wrong elsewhere. The data is one file
of JSON, read when the first problem asks for it.
"""

from __future__ import annotations

import functools
import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmdb.ladder.model_cost import FITTED
from gemmdb.ladder.model_data import CAPABILITIES
from gemmdb.ladder.model_features import FEATURES, of_aten, of_problem, of_tile
from gemmdb.ladder.model_work import Setting, Tile, work

LOG = logging.getLogger("gemmdb")
FORMAT = 1
DATA = Path(__file__).with_name("model_trees.json")
MOST_NODES = 1 << 18
"""Of all trees together: more could not be evaluated at compile time."""
LARGEST = 1 << 31
"""Of any number in the file, whichever its sign."""

Node = tuple[int, float, Any, Any]
"""Feature, threshold, the nodes below for values up to the threshold and for larger ones; or -1, a value, and Nones."""


@dataclass(frozen=True)
class Trees:
    """`base`: what all predictions begin with. `checks`: rows of features with what the fit itself predicts of them."""

    base: float
    roots: Sequence[Node]
    checks: Sequence[tuple[Sequence[float], float]] = ()

    def log(self, values: Sequence[float]) -> float:
        """The logarithm of the measured over the modelled time that is expected of these FEATURES."""
        total = self.base
        for root in self.roots:
            feature, value, low, high = root
            while feature >= 0:
                feature, value, low, high = low if values[feature] <= value else high
            total += value
        return total


@dataclass(frozen=True, slots=True)
class Corrected:
    """The cost model's times on one problem and machine, corrected by trees."""

    setting: Setting
    trees: Trees
    shared: tuple[float, ...]

    @classmethod
    def of(cls, setting: Setting) -> Corrected | None:
        """None on a machine that no trees were fitted on."""
        trees = shipped() if setting.machine.capability in CAPABILITIES else None
        return None if trees is None else cls(setting, trees, of_problem(setting))

    def us(self, tile: Tile) -> float:
        """Microseconds of a tile."""
        w = work(self.setting, tile)
        us = FITTED.of_work(self.setting, tile, w)
        return us * math.exp(self.trees.log((*self.shared, *of_tile(self.setting, tile, w, us))))

    def aten_us(self) -> float:
        """Microseconds of ATen."""
        us = FITTED.predict_aten(self.setting)
        return us * math.exp(self.trees.log((*self.shared, *of_aten(self.setting, us))))


@functools.cache
def shipped() -> Trees | None:
    """The trees that come with the package; None, with a warning, where the file is missing or damaged: the cost model
    answers without them."""
    try:
        return parse(json.loads(DATA.read_bytes()))
    except (OSError, ValueError, RecursionError) as error:
        LOG.warning("gemmdb: the cost model goes without its trees: %s: %s", DATA.name, error)
        return None


def parse(data: Any) -> Trees:
    """The trees of a JSON document. Raises ValueError, which says what is wrong with it.

    `cuts`: pairs of a feature's place and a threshold. `trees`: of each the nodes, children before parents and lower
    ones first; an even number is twice the place of the cut of an inner node, an odd one a leaf, whose value is half of
    it, rounded down, times `unit`.
    """
    if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("features") != list(FEATURES):
        raise ValueError(f"not trees of format {FORMAT} over the {len(FEATURES)} features of this version")
    cuts = [_cut(one) for one in _list(data, "cuts")]
    unit, codes = _number(data.get("unit")), _list(data, "trees")
    if sum(len(one) for one in codes if isinstance(one, list)) > MOST_NODES:
        raise ValueError(f"more than {MOST_NODES} nodes")
    leaves = _Leaves(unit)
    return Trees(
        _number(data.get("base")),
        tuple(_tree(one, cuts, leaves) for one in codes),
        tuple(_check(one) for one in _list(data, "checks")),
    )


class _Leaves(dict[int, Node]):
    """The leaf of each code, one object each: what is small stays in the processor's caches."""

    def __init__(self, unit: float) -> None:
        self.unit = unit

    def __missing__(self, code: int) -> Node:
        self[code] = found = (-1, (code >> 1) * self.unit, None, None)
        return found


def _tree(codes: Any, cuts: Sequence[tuple[int, float]], leaves: _Leaves) -> Node:
    if not isinstance(codes, list) or not set(map(type, codes)) <= {int} or max(map(abs, codes), default=0) > LARGEST:
        raise ValueError("a tree is a list of small integers")
    stack: list[Node] = []
    for code in codes:
        if code & 1:
            stack.append(leaves[code])
        elif len(stack) < 2 or not 0 <= code < 2 * len(cuts):
            raise ValueError(f"no such node: {code}")
        else:
            high, low = stack.pop(), stack.pop()
            stack.append((*cuts[code >> 1], low, high))
    if len(stack) != 1:
        raise ValueError(f"a tree with {len(stack)} roots")
    return stack[0]


def _cut(value: Any) -> tuple[int, float]:
    if not isinstance(value, list) or len(value) != 2 or type(value[0]) is not int:
        raise ValueError("a cut is a feature and a threshold")
    if not 0 <= value[0] < len(FEATURES):
        raise ValueError(f"no feature {value[0]}")
    return value[0], _number(value[1])


def _check(value: Any) -> tuple[tuple[float, ...], float]:
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], list):
        raise ValueError("a check is a row of features and a prediction")
    if len(value[0]) != len(FEATURES):
        raise ValueError("a check has one value for each feature")
    return tuple(map(_number, value[0])), _number(value[1])


def _list(data: Mapping[str, Any], name: str) -> list[Any]:
    found = data.get(name)
    if not isinstance(found, list):
        raise ValueError(f"{name} is a list")
    return found


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not -LARGEST <= value <= LARGEST:
        raise ValueError(f"not a number in range: {value!r:.40}")
    return float(value)
