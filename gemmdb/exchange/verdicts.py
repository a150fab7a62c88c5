"""What a table answers, as CSV: one row per problem and device, for a spreadsheet. It is not read back."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from gemmdb.exchange import flat
from gemmdb.exchange.report import Tally
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.table.reader import Table
from gemmdb.table.verdict import Verdict

COLUMNS = (
    "op", "m", "n", "k", "batch", "a", "b", "out", "bias", "fusion", "device", "origin", "kernel", "speedup",
    "expected_us", "aten_us", "spread", "ties", "runs", "config", "problem",
)  # fmt: skip
"""`speedup`: over ATen; `spread`: half its 95% interval, relative; `ties`: how many configs are as good as the pick."""

HOT = "it was timed with its operands in the cache only, and the format has times with cold ones"
UNDECIDED = "it has no verdict: ATen was not timed in full"


def write(path: Path, table: Table, tally: Tally) -> int:
    """Write the verdicts of a table as CSV with a header line. Returns how many. Problems without one go to `tally`."""
    count = 0
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for count, (problem, device, verdict) in enumerate(each(table, tally), 1):  # noqa: B007 - it counts
            writer.writerow(map(flat.shown, _cells(problem, device, verdict)))
    return count


def each(table: Table, tally: Tally) -> Iterator[tuple[Problem, Device, Verdict]]:
    """The verdict that a lookup would take for each problem and device of a table. Lookups ask for times with cold
    operands, so problems that were timed with hot ones only, and those without any verdict, go to `tally`."""
    for problem, device in table.pairs():
        verdict = table.verdict(problem, device)
        if verdict is not None:
            yield problem, device, verdict
        else:
            hot = table.verdict(problem, device, l2="hot")
            tally.leave(HOT if hot is not None else UNDECIDED, f"{problem.text} on {device.sku}")


def _cells(problem: Problem, device: Device, verdict: Verdict) -> tuple[str | int | float, ...]:
    origin = "modelled" if verdict.protocol.clock == "model" else "measured"
    bias = "none" if problem.bias is None else problem.bias.text
    figures = (verdict.speedup, verdict.expected_us, verdict.aten_us, verdict.spread)
    return (
        problem.op, problem.m, problem.n, problem.k, problem.batch, problem.a.text, problem.b.text, problem.out, bias,
        problem.fusion, device.sku, origin, verdict.pick.name, *(round(figure, 4) for figure in figures),
        len(verdict.ties), verdict.runs, verdict.pick.text, problem.text,
    )  # fmt: skip
