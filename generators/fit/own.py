"""Writes the trees and menus for the ops of `features.TREE_OPS`, on top of the package's coefficients.

    python -m gemmdb.generators.fit.own FOLDER... --out gemmdb/cost

FOLDER: a folder of archives (`rows-*.jsonl.xz`). The same archives and coefficients give the same files:
`menus-own.json` and a `trees-OP.json` for each op. What is fitted to other ops stays as it is, and so do their answers.
Needs gemmdb[fit].
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gemmdb.cost.features import TREE_OPS
from gemmdb.cost.model import FITTED, Coefficients
from gemmdb.generators.fit import cost_model, menu, trees
from gemmdb.generators.fit.cost_model import Sample
from gemmdb.generators.fit.write import divided, json_text, main, provenance, rows
from gemmdb.generators.modelled.space import setting_of


def documents(found: Sequence[Sample], fitted: Coefficients) -> dict[str, dict[str, Any]]:
    """Return the tree documents of each op of TREE_OPS that has samples, on top of `fitted`."""
    by_op = {op: [sample for sample in found if sample.problem.op == op] for op in TREE_OPS}
    return {op: trees.document(of, fitted, trees.OP_TREES, trees.OP_RATE) for op, of in by_op.items() if of}


def texts(folders: Sequence[Path]) -> dict[str, str]:
    found = [sample for sample in divided(cost_model.samples(rows(folders)))[0] if sample.problem.op in TREE_OPS]
    capabilities = sorted({setting_of(one.problem, one.device).machine.capability for one in found})
    document = {
        "capabilities": capabilities, "provenance": provenance(folders, found), "menus": menu.menus(found),
    }  # fmt: skip
    written = {f"trees-{op}.json": trees.text(one) for op, one in documents(found, FITTED).items()}
    return {"menus-own.json": json_text("own", folders, document), **written}


if __name__ == "__main__":
    main(__doc__, texts)
