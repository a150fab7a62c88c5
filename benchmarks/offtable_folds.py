"""Holding out for the cost model as well: its coefficients, menus and trees, fitted without a part of the rows.

The (N, K) pairs of all problems are dealt into PARTS; whatever is asked about a problem of one of them is answered by
what was fitted to the other parts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gemmdb.cost import menu as model_menu
from gemmdb.cost import transfer
from gemmdb.cost import trees as model_trees
from gemmdb.cost.model import Coefficients
from gemmdb.generators.fit import cost_model, write
from gemmdb.generators.fit import menu as fit_menu
from gemmdb.generators.fit import trees as fit_trees
from gemmdb.generators.fit.cost_model import Sample
from gemmdb.key.problem import Problem
from gemmdb.ladder import model
from gemmdb.ladder import unmodelled as model_rest

PARTS = 5
_READERS = (model, model_trees, transfer)


def part_of(problem: Problem) -> int:
    """Which part of the held-out ones a problem belongs to: all of an (N, K) pair to one."""
    digest = hashlib.sha256(f"{problem.n},{problem.k}".encode()).digest()
    return int.from_bytes(digest, "big") % PARTS


@contextmanager
def without(part: int, samples: Sequence[Sample]) -> Iterator[Coefficients]:
    """The ladder with what is fitted to the samples of all parts but one, in this process. Needs gemmdb[fit]."""
    rest, others = write.divided(sample for sample in samples if part_of(sample.problem) != part)
    fitted = cost_model.fit(rest)
    trees = model_trees.parse(fit_trees.document(rest, fitted))
    before = model.FITTED, model_menu.MENUS, model_rest.REST, model_trees.shipped
    _install(fitted, fit_menu.menus(rest), fit_menu.rest(others), lambda: trees)
    try:
        yield fitted
    finally:
        _install(*before)


def _install(fitted: Coefficients, menus: Any, rest: Any, shipped: Any) -> None:
    for module in _READERS:
        module.FITTED = fitted
    model_menu.MENUS, model_rest.REST, model_trees.shipped = menus, rest, shipped
    model_menu._entries.cache_clear()
