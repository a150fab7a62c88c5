"""What the tables answer now to the problems of `fresh`, by the times that it measured then. Needs no GPU.

    python -m benchmarks.offtable fresh-again FILE.jsonl... [--json]

The shipped tables answer each problem of FILE as without a confirmation. An answer that was not timed then cannot be
scored. Of the others: how many are slower than ATen by 5% and by 10%, and the worst; all of them, and those of CUTLASS
alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import json_lines
from benchmarks.offtable.fresh import shipped
from benchmarks.offtable.ways import WAYS
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup import answer

Scored = tuple[Config, float | None]
"""A kernel that is served, and ATen's time relative to its; None if it was not timed."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="what `fresh --out` wrote")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def main(options: argparse.Namespace) -> None:
    """Print the figures of each file."""
    found = {path.name: figures(list(scored(json_lines(path)))) for path in options.files}
    if options.json:
        print(json.dumps(found, indent=1))
        return
    print("| file | kernels | served | timed | slower by 5% | by 10% | worst |\n|---|---|---|---|---|---|---|")
    for name, groups in found.items():
        for group, one in groups.items():
            worst = "" if one["worst"] is None else f"{one['worst']:.3f}x"
            print(
                f"| {name} | {group} | {one['served']} | {one['timed']} | {one['by 5%']} | {one['by 10%']} | {worst} |"
            )


def scored(lines: Sequence[dict[str, Any]]) -> Iterator[Scored]:
    """The kernels that are served now without a confirmation."""
    device = _device()
    for line in lines:
        if "problem" not in line:
            continue
        hit = answer(Query(Problem.parse(line["problem"]), device), shipped(), WAYS["certain"])
        if hit is not None and hit.config != ATEN:
            times = line["timed"].get(hit.config.text, {})
            yield hit.config, times["aten_us"] / times["us"] if "us" in times else None


def figures(found: Sequence[Scored]) -> dict[str, dict[str, Any]]:
    """The figures of all kernels, and of CUTLASS's."""
    groups = {"all": found, "CUTLASS": [one for one in found if one[0].backend == "cutlass"]}
    return {name: _figures([ratio for _, ratio in group]) for name, group in groups.items()}


def _figures(ratios: Sequence[float | None]) -> dict[str, Any]:
    timed = [one for one in ratios if one is not None]
    return {
        "served": len(ratios), "timed": len(timed), "by 5%": sum(one < 1 / 1.05 for one in timed),
        "by 10%": sum(one < 1 / 1.1 for one in timed), "worst": min(timed, default=None),
    }  # fmt: skip


def _device() -> Device:
    """The H200 of the shipped table, on which `fresh` ran."""
    return next(device for table in shipped().tables for _, device in table.pairs() if "H200" in device.text)
