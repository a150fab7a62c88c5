"""Off the table, products of fp8: what does rung `near` answer for those that no row is about? Runs on the CPU, in a
minute.

    python benchmarks/offtable_fp8.py [FOLDER...] [--out FILE.json]

FOLDER: of archives; default: all of benchmarks/results/h200. Problems are held out as `offtable.py` does it, one at a
time (`m`) and all of an (N, K) pair at once (`nk`). No model knows fp8, so nothing is fitted without them. `gain` is
the geometric mean over ATen of what was answered, where that was timed on the problem, and `best` of the fastest that
was; `slower` counts those that took over 1% more than ATen.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from h200_results import folders, parts, run
from offtable import Truth, answer, chosen, fold, problems

from gemmdb.generators.files import archive
from gemmdb.kernels.config import ATEN
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store


def main() -> None:
    """Hold out, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="*")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    paths = [path for folder in options.folder or folders() for path in parts(folder)]
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole.db"
        archive.restore(paths, whole, lambda row: row.problem.op == "scaled_mm")
        with Store.open(whole) as store:
            store.refresh()
        found = {kind: list(answers(whole, kind)) for kind in ("m", "nk")}
    result = {kind: summary(rows) for kind, rows in found.items()}
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.write_text(json.dumps({"summary": result, "answers": found}, indent=1) + "\n")


def answers(whole: Path, kind: str) -> Iterator[dict[str, Any]]:
    """What `near` says of each problem that is held out, and what that is worth."""
    with closing(Table.open(whole, immutable=True)) as table:
        (device,) = table.devices()
        truths = {problem: Truth(problem, table.pooled(problem, device)) for problem in problems(table)}
    for held in chosen(truths, kind, len(truths)):
        with fold(whole, truths, held) as one:
            yield from (answer(one, truth) for truth in one.truths)


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Counts, and means of what was served other than ATen and timed."""
    served = [row for row in rows if row.get("config", ATEN.text) != ATEN.text]
    timed = [row for row in served if row["share"] is not None]
    return {
        "problems": len(rows),
        "aten": sum(row.get("config") == ATEN.text for row in rows),
        "served": len(served),
        "timed": len(timed),
        "gain": round(statistics.geometric_mean(row["share"] / row["aten"] for row in timed), 3),
        "best": round(statistics.geometric_mean(1 / row["aten"] for row in timed), 3),
        "slower": sum(row["share"] < 0.99 * row["aten"] for row in timed),
    }


if __name__ == "__main__":
    run(main)
