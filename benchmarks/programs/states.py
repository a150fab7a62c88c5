"""Which state of the cache predicts best what a kernel saves inside a program.

    python -m benchmarks.programs states FILE.jsonl [--json]

FILE is of `measure --study N`: for the N GEMMs of each program that take the longest with a kernel of gemmdb, it has
the microseconds that the program saves by that kernel, and what its code and default mode's code for the same piece of
the graph take alone, in each state of the cache. The states: `cold` (all operands come from memory), `program` (what
the graph has just computed is in the cache, as confirming does it), `hot` (all operands are in the cache). `table` is
what the answer expects.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common import json_lines

STATES = ("table", "cold", "program", "hot")
CERTAIN = 0.5
"""Products whose saving in the program is known to so many microseconds per call, half the interval, are compared."""


@dataclass(frozen=True)
class Saving:
    """One GEMM of one program: microseconds per call that its kernel saves there, half the interval, and what each
    state predicts. `us`: what ATen takes, all operands from memory."""

    program: str
    problem: str
    count: int
    saved: float
    within: float
    predicted: dict[str, float]
    us: float


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="results of `measure --study`")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def main(options: argparse.Namespace) -> None:
    """Print a line per GEMM, and the figures of each state."""
    found = [saving for file in options.files for row in json_lines(file) for saving in savings(row)]
    if options.json:
        print(json.dumps(figures(found), indent=1))
        return
    print(
        f"{'program':26} {'count':>5} {'saved':>7} {'+-':>5} " + " ".join(f"{one:>8}" for one in STATES) + "  product"
    )
    for one in found:
        states = " ".join(f"{one.predicted[state]:8.2f}" for state in STATES)
        text = one.problem.split(" scalars=")[0] + " " + one.problem.split("fusion=")[1].split()[0]
        print(f"{one.program:26} {one.count:5} {one.saved:7.2f} {one.within:5.2f} {states}  {text}")
    for state, values in figures(found)["states"].items():
        print(f"{state:8} {values}")


def savings(row: dict[str, Any]) -> Iterator[Saving]:
    """The GEMMs of a row that were timed in the program and alone."""
    for one in row.get("study", ()):
        if not one.get("alone"):
            continue
        low, middle, high = (-value / one["count"] for value in reversed(one["lost_us"]))
        predicted = {state: aten - ours for state, (aten, ours) in one["alone"].items()}
        predicted["table"] = (one["expected_us"] or 0.0) * ((one["speedup"] or 1.0) - 1)
        yield Saving(
            row["program"], one["problem"], one["count"], middle, (high - low) / 2, predicted, one["alone"]["cold"][0]
        )


def figures(found: Sequence[Saving]) -> dict[str, Any]:
    """For each state: the median distance to the saving in the program in microseconds, the mean bias, and how many
    kernels it would serve that lose in the program."""
    sure = [one for one in found if one.within <= CERTAIN]
    states = {}
    for state in STATES if sure else ():
        errors = [one.predicted[state] - one.saved for one in sure]
        states[state] = {
            "distance_us": round(median(map(abs, errors)), 3),
            "bias_us": round(sum(errors) / len(errors), 3),
            "served_and_slower": sum(one.predicted[state] > 0 > one.saved + one.within for one in sure),
            "served": sum(one.predicted[state] > 0 for one in sure),
        }
    programs = len({one.program for one in sure})
    return {"products": len(sure), "programs": programs, "uncertain": len(found) - len(sure), "states": states}
