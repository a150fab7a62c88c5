"""Writes the cost model's data: fits the model to archives of measured rows, chooses its menus, and grows its trees.

    python -m gemmdb.generators.fit.write FOLDER... --out gemmdb/cost

FOLDER: a folder of archives (`rows-*.jsonl.xz`). The same archives give the same files: `coefficients.json`,
`menus.json` and `trees.json`. TREE_OPS are left to `gemmdb.generators.fit.own`. Needs gemmdb[fit].
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gemmdb import trust
from gemmdb.cost.features import TREE_OPS
from gemmdb.cost.model import Coefficients
from gemmdb.generators.files import archive
from gemmdb.generators.fit import cost_model as fit
from gemmdb.generators.fit import menu, trees
from gemmdb.generators.fit.cost_model import Sample
from gemmdb.generators.modelled.space import setting_of
from gemmdb.kernels.config import ATEN
from gemmdb.lookup.ranking import outside
from gemmdb.table.measurement import Measurement

MIN_PROBLEMS = 300
"""Least number of measured problems for an op to be modelled."""
DIGITS = 6
"""Significant digits of a coefficient, far more than the rows determine."""


def rows(folders: Sequence[Path], reference: bool = False) -> Iterator[Measurement]:
    """Yield the rows of all archives that timed a kernel alone, on a quiet machine. `reference`: also those of ATen as
    default mode's code, which unpacks a weight first."""
    for path in (path for folder in folders for path in sorted(folder.glob("rows-*.jsonl.xz"))):
        for row in archive.read(path):
            if not row.disturbed and (not row.emitted or (reference and row.config == ATEN)):
                yield row


def divided(found: Iterable[Sample], least: int = 1) -> tuple[list[Sample], list[Sample]]:
    """Return the samples to fit the model to, from ops with at least `least` measured problems, and those of problems
    that it does not cover."""
    covered: list[Sample] = []
    others: list[Sample] = []
    for sample in found:
        (others if outside(sample.problem) else covered).append(sample)
    problems = Counter(problem.op for problem in {sample.problem for sample in covered})
    few = {op for op, count in problems.items() if count < least}
    others += [sample for sample in covered if sample.problem.op in few]
    return [sample for sample in covered if sample.problem.op not in few], others


def texts(folders: Sequence[Path]) -> dict[str, str]:
    """Return the cost model's data files for these archives, by name."""
    covered, others = divided(fit.samples(rows(folders)), MIN_PROBLEMS)
    found = [sample for sample in covered if sample.problem.op not in TREE_OPS]
    fitted = fit.fit(found)
    rounded = Coefficients(_rounded(fitted.rates), _rounded(fitted.own), _rounded(fitted.common))
    capabilities = sorted({setting_of(one.problem, one.device).machine.capability for one in found})
    coefficients = {
        "capabilities": capabilities, "ops": sorted({one.problem.op for one in found}),
        "provenance": provenance(folders, found), "rates": rounded.rates, "traits": rounded.own,
        "kinds": rounded.common,
    }  # fmt: skip
    return {
        "coefficients.json": json_text("write", folders, coefficients),
        "menus.json": json_text("write", folders, {"menus": menu.menus(found), "rest": menu.rest(others)}),
        "trees.json": trees.text(trees.document(found, rounded)),
    }


def provenance(folders: Sequence[Path], found: Sequence[Sample]) -> dict[str, Any]:
    """Return the provenance of the fit: numbers of rows and problems, devices, and the digest of each archive."""
    return {
        "rows": len(found),
        "problems": len({(sample.problem, sample.device) for sample in found}),
        "devices": sorted({sample.device.sku for sample in found}),
        "archives": {
            path.as_posix(): trust.sha256_of(path)
            for folder in folders
            for path in sorted(folder.glob("rows-*.jsonl.xz"))
        },
    }


def json_text(tool: str, folders: Sequence[Path], document: Mapping[str, Any]) -> str:
    """Return the JSON file that `tool` of this package writes. Mappings and texts have one line per item."""
    command = f"python -m gemmdb.generators.fit.{tool} {' '.join(folder.as_posix() for folder in folders)}"
    return _json({"written_by": command, **document}) + "\n"


def _json(value: Any, indent: str = "") -> str:
    inner = f"{indent} "
    if isinstance(value, Mapping):
        items = [f"{inner}{json.dumps(str(name))}: {_json(item, inner)}" for name, item in value.items()]
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], str):
        return "[\n" + ",\n".join(f"{inner}{json.dumps(item)}" for item in value) + f"\n{indent}]"
    return json.dumps(value)


def _rounded(groups: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, ...]]:
    return {group: tuple(float(f"{value:.{DIGITS}g}") for value in values) for group, values in groups.items()}


def main(about: str | None, files: Callable[[Sequence[Path]], dict[str, str]]) -> None:
    """Fit, then write. `about`: help text of the command; `files`: returns the files for some archives, by name."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True, help="the package of the cost model")
    options = parser.parse_args()
    for name, text in files(options.folder).items():
        (options.out / name).write_text(text)


if __name__ == "__main__":
    main(__doc__, texts)
