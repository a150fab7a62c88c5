"""Print the figures of `near` as Markdown.

    python -m benchmarks.offtable report benchmarks/results/offtable

Each file of answers in the folder becomes a section.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
HELD_OUT = {"m": "M missing, N and K known", "nk": "N and K unknown"}
OPS = ("mm", "addmm", "int_mm", "mixed_mm")
CLASSES = (("M <= 16", 1, 16), ("M <= 64", 17, 64), ("M > 64", 65, 1 << 31))
PROMISES = (0.05, 0.08, 0.1)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="what `near --out` wrote")


def main(options: argparse.Namespace) -> None:
    """Print the sections of every file of answers."""
    for path in sorted(options.folder.glob("20*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        print(f"## {path.name.removesuffix('.jsonl.gz')}\n")
        for held_out, title in HELD_OUT.items():
            print("\n".join(section(title, [row for row in rows if row["held_out"] == held_out])))


def section(title: str, rows: Sequence[Row]) -> Iterable[str]:
    """The lines of one way of holding out."""
    answered = [row for row in rows if "config" in row]
    scored = [row for row in answered if row["share"] is not None]
    sure = [row for row in scored if row["promise"] <= PROMISES[-1]]
    declined = [row for row in rows if "config" not in row]
    yield f"### {title}: {len(rows)} problems\n"
    yield (
        f"Answered: {len(answered)}, {len(answered) - len(scored)} of them with a config that was not timed there and"
        f" cannot be scored. Declined: {len(declined)}; ATen's share there is {figures(declined, aten)}.\n"
    )
    yield "| problems | number | near | nearest copy | nearest M | most common | ATen | ATen and four proposals |"
    yield "|---|---|---|---|---|---|---|---|"
    groups = [(f"promised at most {PROMISES[-1]:.0%}", sure), ("all answers", scored)]
    groups += [(op, [row for row in scored if row["op"] == op]) for op in OPS]
    groups += [(name, [row for row in scored if low <= row["m"] <= high]) for name, low, high in CLASSES]
    groups += [("declined", declined)]
    for name, group in groups:
        if group:
            yield f"| {name} | {len(group)} | {' | '.join(figures(group, score) for score in SCORES)} |"
    yield "\nCalibration: " + "; ".join(kept(scored, promise) for promise in PROMISES) + ".\n"


def figures(rows: Sequence[Row], score: Callable[[Row], float | None]) -> str:
    """Geometric mean and 5th percentile of a share of the best time."""
    shares = sorted(share for row in rows if (share := score(row)) is not None)
    if not shares:
        return "-"
    mean = math.exp(sum(map(math.log, shares)) / len(shares))
    return f"{mean:.3f} / {shares[int(len(shares) * 0.05)]:.3f}"


def kept(rows: Sequence[Row], promise: float) -> str:
    """How many of the answers that promise at most `promise` of loss keep it."""
    found = [row for row in rows if row["promise"] <= promise]
    held = sum(1 / row["share"] - 1 <= promise for row in found)
    return f"of {len(found)} that promise at most {promise:.0%} loss {held / max(len(found), 1):.0%} keep it"


def aten(row: Row) -> float:
    """ATen's share of the best time."""
    return float(row["aten"])


def _peer(name: str) -> Callable[[Row], float]:
    return lambda row: float(row["peers"][name])


SCORES: tuple[Callable[[Row], float | None], ...] = (
    lambda row: row.get("share"), _peer("nearest copy"), _peer("nearest M"), _peer("most common"), aten,
    lambda row: row.get("live"),
)  # fmt: skip
