"""Holding out for the cost model as well: its coefficients, menus and trees, fitted without a part of the rows.

The (N, K) pairs of all problems are dealt into PARTS; whatever is asked about a problem of one of them is answered by
what was fitted to the other parts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gemmdb.generators import fit, fit_menu, fit_trees, fit_write
from gemmdb.generators.fit import Sample
from gemmdb.ladder import model, model_menu, model_rest, model_trees, transfer
from gemmdb.ladder.model_cost import Coefficients
from gemmdb.problem import Problem

PARTS = 5
_READERS = (model, model_trees, transfer)


def part_of(problem: Problem) -> int:
    """Which part of the held-out ones a problem belongs to: all of an (N, K) pair to one."""
    digest = hashlib.sha256(f"{problem.n},{problem.k}".encode()).digest()
    return int.from_bytes(digest, "big") % PARTS


@contextmanager
def without(part: int, samples: Sequence[Sample]) -> Iterator[Coefficients]:
    """The ladder with what is fitted to the samples of all parts but one, in this process. Needs gemmdb[fit]."""
    rest, others = fit_write.divided(sample for sample in samples if part_of(sample.problem) != part)
    fitted = fit.fit(rest)
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
