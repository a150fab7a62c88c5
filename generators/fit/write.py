"""Writes the cost model's data: fits the model to archives of measured rows, chooses its menus, and grows its trees.

    python -m gemmdb.generators.fit.write FOLDER... --out gemmdb/cost

FOLDER: a folder of archives (`rows-*.jsonl.xz`). The same archives give the same files: `data.py`, `menus.py` and
`trees.json`. The ops of `features.OWN` are left to `gemmdb.generators.fit.own`. Needs gemmdb[fit].
"""

from __future__ import annotations

import argparse
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gemmdb import trust
from gemmdb.cost.features import OWN
from gemmdb.cost.model import Coefficients
from gemmdb.generators.files import archive
from gemmdb.generators.fit import cost_model as fit
from gemmdb.generators.fit import menu, trees
from gemmdb.generators.fit.cost_model import Sample
from gemmdb.generators.modelled.space import setting_of
from gemmdb.ladder.model import outside
from gemmdb.table.measurement import Measurement

MODELLED = 300
"""How many problems of an op must have been measured for it to be modelled."""
DIGITS = 6
"""Significant digits of a coefficient, far more than the rows determine."""
HEAD = '''"""{title}

Written by `python -m gemmdb.generators.fit.{tool} {folders}`; do not edit.
"""
# ruff: noqa: E501
# fmt: off

from __future__ import annotations

from collections.abc import Mapping, Sequence

'''


def rows(folders: Sequence[Path]) -> Iterator[Measurement]:
    """The rows of all archives that timed a kernel by itself, on a quiet machine."""
    for path in (path for folder in folders for path in sorted(folder.glob("rows-*.jsonl.xz"))):
        yield from (row for row in archive.read(path) if not (row.emitted or row.disturbed))


def divided(found: Iterable[Sample], least: int = 1) -> tuple[list[Sample], list[Sample]]:
    """The samples that the model is fitted to, of ops of which at least `least` problems were measured, and those of
    problems that it does not cover."""
    covered: list[Sample] = []
    others: list[Sample] = []
    for sample in found:
        (others if outside(sample.problem) else covered).append(sample)
    problems = Counter(problem.op for problem in {sample.problem for sample in covered})
    few = {op for op, count in problems.items() if count < least}
    others += [sample for sample in covered if sample.problem.op in few]
    return [sample for sample in covered if sample.problem.op not in few], others


def texts(folders: Sequence[Path]) -> dict[str, str]:
    """The files of the ladder's data for these archives, by name."""
    covered, others = divided(fit.samples(rows(folders)), MODELLED)
    found = [sample for sample in covered if sample.problem.op not in OWN]
    fitted = fit.fit(found)
    rounded = Coefficients(_rounded(fitted.rates), _rounded(fitted.own), _rounded(fitted.common))
    capabilities = sorted({setting_of(one.problem, one.device).machine.capability for one in found})
    coefficients = (
        (
            "CAPABILITIES: Sequence[int]", capabilities,
            "Compute capabilities of the GPUs whose rows all of it was fitted to.",
        ),
        (
            "OPS: Sequence[str]", sorted({one.problem.op for one in found}),
            "The ops of these rows: no others are modelled.",
        ),
        ("PROVENANCE: Mapping[str, object]", provenance(folders, found), "What the coefficients were fitted to."),
        ("RATES: Mapping[str, Sequence[float]]", rounded.rates, "Of `model.microseconds`, by group."),
        ("OWN: Mapping[str, Sequence[float]]", rounded.own, "Of `model.traits`, by group."),
        ("COMMON: Mapping[str, Sequence[float]]", rounded.common, "Of `model.kinds`, by group."),
    )  # fmt: skip
    menus = (
        (
            "MENUS: Mapping[str, Mapping[int, Sequence[str]]]", menu.menus(found),
            "Candidates by menu and largest M; see `menu`.",
        ),
        (
            "REST: Mapping[str, Mapping[int, Sequence[str]]]", menu.rest(others),
            "What is tried where the model does not know the problem; see `gemmdb.ladder.unmodelled`.",
        ),
    )  # fmt: skip
    return {
        "data.py": module("write", "The cost model's coefficients, fitted to measured rows.", folders, coefficients),
        "menus.py": module("write", "The cost model's menus, chosen from measured rows.", folders, menus),
        "trees.json": trees.text(trees.document(found, rounded)),
    }


def provenance(folders: Sequence[Path], found: Sequence[Sample]) -> dict[str, Any]:
    """What was fitted to: numbers of rows and problems, devices, and the digest of each archive."""
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


def module(tool: str, title: str, folders: Sequence[Path], parts: Sequence[tuple[str, Any, str]]) -> str:
    """The source of a module that `tool` of this package writes: its values, each with its docstring."""
    head = HEAD.format(tool=tool, title=title, folders=" ".join(folder.as_posix() for folder in folders))
    return head + "\n".join(f'{name} = {literal(value)}\n"""{what}"""\n' for name, value, what in parts)


def _rounded(groups: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, ...]]:
    return {group: tuple(float(f"{value:.{DIGITS}g}") for value in values) for group, values in groups.items()}


def literal(value: Any, indent: str = "") -> str:
    """The value as Python source, one item a line where it is nested."""
    inner = f"{indent}    "
    if isinstance(value, dict):
        items = "".join(f"{inner}{literal(k)}: {literal(v, inner)},\n" for k, v in value.items())
        return f"{{\n{items}{indent}}}"
    if isinstance(value, tuple) and value and isinstance(value[0], float):
        lines = textwrap.wrap(", ".join(map(repr, value)) + ",", 120 - len(inner))
        return "(\n" + "".join(f"{inner}{line}\n" for line in lines) + f"{indent})"
    if isinstance(value, tuple):
        return "(\n" + "".join(f"{inner}{literal(item)},\n" for item in value) + f"{indent})"
    return '"' + value + '"' if isinstance(value, str) else repr(value).replace("'", '"')


def main(about: str | None, files: Callable[[Sequence[Path]], dict[str, str]]) -> None:
    """Fit, then write. `about`: the help of the command; `files`: the files for some archives, by name."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True, help="the package of the cost model")
    options = parser.parse_args()
    for name, text in files(options.folder).items():
        (options.out / name).write_text(text)


if __name__ == "__main__":
    main(__doc__, texts)
