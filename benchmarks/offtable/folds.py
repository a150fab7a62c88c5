"""The cost model held out as well: its coefficients, menus and trees, fitted without a fold of the rows.

The (N, K) pairs of all problems are dealt into FOLDS folds. A question about a problem of one fold is answered by what
was fitted to the other folds.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from gemmdb.cost import candidates as menu
from gemmdb.cost import transfer, trees
from gemmdb.cost.data import menus as shipped_menus
from gemmdb.cost.data import rest as shipped_rest
from gemmdb.cost.features import FEATURES, TREE_OPS
from gemmdb.cost.model import FITTED, Coefficients
from gemmdb.generators.fit import cost_model, own, write
from gemmdb.generators.fit import menu as fit_menu
from gemmdb.generators.fit import trees as fit_trees
from gemmdb.generators.fit.cost_model import Sample
from gemmdb.kernels.trees import parse
from gemmdb.key.problem import Problem
from gemmdb.lookup import ranking, similar

FOLDS = 5


def fold_of(problem: Problem) -> int:
    """The number of the fold that a problem belongs to. All problems of an (N, K) pair belong to one."""
    digest = hashlib.sha256(f"{problem.n},{problem.k}".encode()).digest()
    return int.from_bytes(digest, "big") % FOLDS


def fitted_without(fold: int, samples: Sequence[Sample]) -> AbstractContextManager[Coefficients]:
    """The lookup of this process with what is fitted to the samples of all folds except one. Needs gemmdb[fit]."""
    return fitted_to(sample for sample in samples if fold_of(sample.problem) != fold)


@contextmanager
def fitted_to(samples: Iterable[Sample], keep: Path | None = None) -> Iterator[Coefficients]:
    """The lookup of this process with what is fitted to these samples. Needs gemmdb[fit]. `keep`: a file that receives
    what was fitted; if it exists, it is read instead."""
    if keep is not None and keep.exists():
        fitted, documents, menus, others = pickle.loads(keep.read_bytes())
    else:
        fitted, documents, menus, others = found = _fitted(samples)
        if keep is not None:
            keep.write_bytes(pickle.dumps(found))
    parsed = {op: parse(document, FEATURES) for op, document in documents.items()}
    shipped = trees.shipped
    # Three modules import FITTED by name.
    replaced = (
        (ranking, "FITTED", fitted), (trees, "FITTED", fitted), (transfer, "FITTED", fitted),
        (menu, "menus", lambda: menus), (similar, "rest", lambda: others),
        (trees, "shipped", lambda op="": parsed.get(op) or shipped(op)),
    )  # fmt: skip
    with ExitStack() as stack:
        stack.callback(menu._entries.cache_clear)
        for module, name, value in replaced:
            stack.enter_context(patch.object(module, name, value))
        menu._entries.cache_clear()
        yield fitted


def _fitted(
    samples: Iterable[Sample],
) -> tuple[Coefficients, dict[str, dict[str, Any]], dict[str, Any], dict[str, Any]]:
    """The coefficients, the tree documents by op of TREE_OPS (the others as ""), and both kinds of menus. Without
    samples of other ops, these have what is shipped."""
    covered, others = write.divided(samples)
    base = [sample for sample in covered if sample.problem.op not in TREE_OPS]
    fitted = cost_model.fit(base) if base else FITTED
    documents = own.documents([sample for sample in covered if sample.problem.op in TREE_OPS], fitted)
    if base:
        documents[""] = fit_trees.document(base, fitted)
    rest = fit_menu.rest(others) if base else shipped_rest()
    return fitted, documents, {**shipped_menus(), **fit_menu.menus(covered)}, dict(rest)
