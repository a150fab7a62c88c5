"""Writes the cost model's data: fits it to archives of measured rows and chooses its menus.

    python -m gemmdb.generators.fit_write FOLDER... --out gemmdb/ladder/model_data.py

FOLDER: of archives (`rows-*.jsonl.xz`). The same archives give the same file. Needs numpy.
"""

from __future__ import annotations

import argparse
import hashlib
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gemmdb.generators import archive, fit, fit_menu
from gemmdb.ladder.model import uncovered
from gemmdb.measurement import EMITTED, Measurement

DIGITS = 6
"""Significant digits of a coefficient: far more than the rows determine."""
HEAD = '''"""The cost model's coefficients and menus, fitted to measured rows.

Written by `python -m gemmdb.generators.fit_write {folders} --out gemmdb/ladder/model_data.py`; do not edit.
"""
# ruff: noqa: E501
# fmt: off

from __future__ import annotations

from collections.abc import Mapping, Sequence

'''


def rows(folders: Sequence[Path]) -> Iterator[Measurement]:
    """The rows of all archives that the model is fitted to: kernels by themselves, on problems that it covers."""
    for path in (path for folder in folders for path in sorted(folder.glob("rows-*.jsonl.xz"))):
        for row in archive.read(path):
            if row.detail != EMITTED and uncovered(row.problem) is None:
                yield row


def text(folders: Sequence[Path]) -> str:
    """The module `gemmdb.ladder.model_data` for these archives."""
    found = fit.samples(rows(folders))
    fitted = fit.fit(found)
    sources = {
        path.as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for folder in folders
        for path in sorted(folder.glob("rows-*.jsonl.xz"))
    }
    provenance = {
        "rows": len(found),
        "problems": len({(sample.problem, sample.device) for sample in found}),
        "devices": sorted({sample.device.sku for sample in found}),
        "archives": sources,
    }
    parts = (
        ("PROVENANCE: Mapping[str, object]", provenance, "What the coefficients were fitted to."),
        ("RATES: Mapping[str, Sequence[float]]", _rounded(fitted.rates), "Of `model_cost.microseconds`, by group."),
        ("OWN: Mapping[str, Sequence[float]]", _rounded(fitted.own), "Of `model_cost.traits`, by group."),
        ("COMMON: Mapping[str, Sequence[float]]", _rounded(fitted.common), "Of `model_cost.kinds`, by group."),
        (
            "MENUS: Mapping[str, Mapping[int, Sequence[str]]]", fit_menu.menus(found),
            "Candidates by family of ops and largest M; see `model_menu`.",
        ),
    )  # fmt: skip
    head = HEAD.format(folders=" ".join(folder.as_posix() for folder in folders))
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


def main() -> None:
    """Fit and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.write_text(text(options.folder))


if __name__ == "__main__":
    main()
