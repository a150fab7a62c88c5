"""What live tuning expects to save, against what was measured: does it tune the GEMMs that repay it?

    python -m benchmarks.offtable worth

For every problem of the shipped H200 table, `gemmdb.lookup.saving` is asked as if the table did not have it, and what
the best measured config saves over ATen is compared with that: of the configs that live tuning would try, those that
nvcc does not compile and, where the cost model covers the problem, that need no torch to compile. A problem counts as
tuned if it is expected to save a limit per call of a graph that has it `times` times. `wasted` are those that save less
in fact; `left` is the share of all savings that is not tuned.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gemmdb.key.problem import Query
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.ranking import uncovered
from gemmdb.lookup.saving import saving
from gemmdb.settings import FAST_COMPILE_COST, Policy, shipped_tables
from gemmdb.table.reader import Table

TABLE = "sm90-nvidia-h200.db"
LIMIT_US = 10.0
"""What a GEMM has to save per call of its graph to repay a second within 100,000 calls."""
TIMES = (1, 4, 32)


@dataclass(frozen=True)
class Known:
    """A measured problem: whether the model covers it; the microseconds that it should save, and those it does."""

    covered: bool
    expected_us: float
    measured_us: float


def known() -> Iterator[Known]:
    """Every measured problem."""
    path, policy = shipped_tables() / TABLE, Policy(compile_cost=FAST_COMPILE_COST)
    with Table.open(path) as table:
        (device,) = table.devices()
        for problem in sorted({problem for problem, _ in table.pairs()}, key=lambda problem: problem.text):
            verdict = table.verdict(problem, device)
            found = saving(Ask(Query(problem, device), (), policy, None))
            if verdict is None or found is None:
                continue
            covered = uncovered(problem) is None
            tried = (
                one.ratio
                for one in table.pooled(problem, device)
                if one.servable
                and one.config.spec.cost <= FAST_COMPILE_COST
                and not (covered and one.config.spec.emitted)
            )
            yield Known(covered, found.us, verdict.aten_us * (1 - min(min(tried, default=1.0), 1.0)))


def row(some: Sequence[Known], times: int) -> dict[str, float]:
    """The figures of some problems that are `times` times in a graph."""
    tuned = [one for one in some if times * one.expected_us >= LIMIT_US]
    left = sum(one.measured_us for one in some) - sum(one.measured_us for one in tuned)
    wasted = sum(times * one.measured_us < LIMIT_US for one in tuned)
    return {
        "times": times, "problems": len(some), "tuned": len(tuned), "wasted": wasted,
        "left": round(left / sum(one.measured_us for one in some), 4),
    }  # fmt: skip


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool: none."""


def main(options: argparse.Namespace) -> None:
    """Print the figures."""
    every = list(known())
    for covered in (True, False):
        print("problems that the model covers" if covered else "other problems")
        for times in TIMES:
            print(" ", row([one for one in every if one.covered is covered], times))
