"""Do rows without an epilogue tell which kernel gains with the light one? Runs on the CPU.

    python -m benchmarks.offtable light [--json]

The problems are those of the shipped H200 table with `fusion=pointwise`. What it says of them is the truth. Rungs
`exact` and `near` are asked without the epilogue, and rung `near` with it (`own`), in two ways: `certain`, where
nothing times the answer first, and `confirming`, as before an answer is timed. `kernels`: how many are answered by a
kernel from rows without an epilogue; `unknown`: for how many of them this kernel or that of `own` was not timed. `gain`
over ATen is the geometric mean of the others, `own` that of rung `near` for the same problems, with ATen where it
declines, and `best` that of the fastest kernel.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

from benchmarks.common import SHIPPED
from benchmarks.offtable.ways import WAYS
from gemmdb.key.epilogue import LIGHT
from gemmdb.key.problem import Query
from gemmdb.lookup.acceptance import exact
from gemmdb.lookup.acceptance.near import near
from gemmdb.lookup.ask import Ask
from gemmdb.table.reader import Table

SLOWER = 1.02
"""From which time relative to ATen a kernel counts as slower."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")


def main(options: argparse.Namespace) -> None:
    """Ask about every problem, and print the figures."""
    found = figures()
    print(json.dumps(found, indent=1) if options.json else "\n".join(markdown(found)))


def figures() -> dict[str, dict[str, dict[str, Any]]]:
    """The figures by op and way; `all` are those of all ops."""
    scored: dict[str, dict[str, list[tuple[float | None, float | None, float]]]]
    scored = defaultdict(lambda: defaultdict(list))
    with closing(Table.open(SHIPPED, immutable=True)) as table:
        (device,) = table.devices()
        for problem in sorted((one for one, _ in table.pairs() if one.fusion == LIGHT.text), key=lambda one: one.text):
            times = {one.config: one.ratio for one in table.pooled(problem, device)}
            for way, policy in WAYS.items():
                own = Ask(Query(problem, device), (table,), policy, None)
                alone = own.at(replace(problem, fusion="none"))
                hit = exact(alone).hit or near(alone).hit
                if hit is None or hit.config.backend == "aten":
                    continue
                mine = near(own).hit
                beside = 1.0 if mine is None else times.get(mine.config)
                for name in ("all", problem.op):
                    scored[name][way].append((times.get(hit.config), beside, min(times.values())))
    return {op: {way: summary(ways[way]) for way in WAYS if way in ways} for op, ways in sorted(scored.items())}


def summary(rows: list[tuple[float | None, float | None, float]]) -> dict[str, Any]:
    """The figures of some problems."""
    known = [(time, own, best) for time, own, best in rows if time is not None and own is not None]
    gains = [1 / statistics.geometric_mean(column) for column in zip(*known, strict=True)] or [1.0] * 3
    slower = sum(time > SLOWER for time, _, _ in known)
    return {
        "kernels": len(rows), "unknown": len(rows) - len(known), "slower": slower,
        **dict(zip(("gain", "own", "best"), gains, strict=True)),
    }  # fmt: skip


def markdown(found: dict[str, dict[str, dict[str, Any]]]) -> Iterator[str]:
    """The figures as a table."""
    yield "| op | | kernels | unknown | slower by 2% | gain | own | best |"
    yield "|---|---|---|---|---|---|---|---|"
    for op, ways in found.items():
        for way, of in ways.items():
            gains = " | ".join(f"{of[name]:.3f}x" for name in ("gain", "own", "best"))
            yield f"| {op} | {way} | {of['kernels']} | {of['unknown']} | {of['slower']} | {gains} |"
