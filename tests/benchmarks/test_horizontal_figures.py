"""The figures of horizontal fusion in the documents are those of the raw file."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
RAW = json.loads((ROOT / "benchmarks/results/programs/2026-11-24/horizontal.json").read_text())


def ratios(fused: bool) -> list[float]:
    """default over gemmdb, by block, of the run with or without kernels for several weights."""
    (run,) = (run for run in RAW["runs"] if run["horizontal"] == fused)
    return [round(block["us"]["default"] / block["us"]["gemmdb"], 3) for block in run["blocks"]]


def test_the_table_of_the_page() -> None:
    page = (ROOT / "docs/horizontal-fusion.md").read_text()
    rows = re.findall(r"^\| .* \| (\d+) \| ([\d.]+)x \| ([\d.]+)x \|$", page, re.MULTILINE)
    (run,) = (run for run in RAW["runs"] if run["horizontal"])
    assert [int(us) for us, _, _ in rows] == [round(block["us"]["default"]) for block in run["blocks"]]
    for found, wanted in zip(rows, zip(ratios(False), ratios(True), strict=True), strict=True):
        assert [float(one) for one in found[1:]] == [round(one, 3) for one in wanted]


def test_the_line_of_the_readme() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    ends = f"{min(ratios(True)):.2f}x to {max(ratios(True)):.2f}x in six small models"
    assert ends in readme
