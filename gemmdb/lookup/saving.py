"""Estimated savings from tuning a GEMM, made before any measurement, to decide whether tuning pays off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gemmdb.key.problem import Problem
from gemmdb.lookup.ask import Ask
from gemmdb.rejected import Rejected

LEAST_US = 2.0
"""Launch overhead: the fastest of 4,112 problems on an H200 took this long, with cold caches."""
TINY_US = 0.25
"""A GEMM with less work than this is mostly launch. On 114 such problems in the H200 table ATen takes 3 to 9 us; their
best configs save 190 us in total, 1/600 of the savings in the whole table. Not for int4 weights: ATen may expand even a
small one in a kernel of its own."""
OPTIMISM = 0.05
"""The best config may be this much faster than the cost model expects. Over the 3,561 problems in the H200 table that
the model covers, each 4 times in a graph, a limit of 10 us per call then leaves 0.9% of all savings untuned, and 22% of
the tuned problems save less than the limit; without it 2.0% and 15% (`python -m benchmarks.offtable worth`)."""
UNMODELLED = {
    "bmm": (6.0, 1.0, 0.2),
    "blocks": (9.5, 1.25, 0.27),
    "fp8": (6.0, 1.25, 0.5),
    "fp32": (6.0, 2.0, 0.15),
    "groups": (11.0, 1.6, 0.7),
    "mixed": (2.0, 20.0, 0.5),
    "unaligned": (3.0, 6.0, 0.5),
}
"""For problems that the cost model does not cover: ATen's fixed microseconds, its multiple of the roofline, and the
fraction of its distance to the roofline that the best config saves. Fitted to problems in the H200 table; `groups`
to seven grouped GEMMs with few rows, `blocks`, fp8 with block scales, to 22 with at most 64 rows. The model alone
misses more for batched GEMMs: of 377, held out and 32 times in a graph, it leaves 30% of all savings untuned, and `bmm`
here 5%. The larger estimate is used."""


class Linear(NamedTuple):
    """A time in microseconds as a sum: fixed ones, and multiples of the least time for the bytes and of that for the
    operations."""

    fixed_us: float
    bytes: float
    operations: float

    def us(self, bytes_us: float, operations_us: float) -> float:
        """The time of a problem with these least times."""
        return self.fixed_us + self.bytes * bytes_us + self.operations * operations_us


INT4_TILED = (Linear(4.2, 1.0, 26.0), Linear(5.2, 1.1, 1.3))
INT4_IN_ORDER = (Linear(6.9, 14.3, 0.3), Linear(6.3, 1.2, 1.8))
"""For int4 weights, ATen's time and that of the best other config. ATen multiplies a tiled weight at a twentieth of the
rate. It expands any other to 16 bits in memory, at 14 times the bytes; from some hundred rows on, that costs less than
what our kernels add to each operation. Fitted to 288 and 99 problems in the H200 table, with mean errors of ATen's time
of 9% and 20%. The factors 0.3 and 1.8 leave almost no saving of the 99 untuned; 0 and 2.6 have smaller errors."""
INT4_FOLDED = Linear(4.0, 3.3, 0.6)
"""ATen's time for a constant weight that is not tiled: freezing has expanded it once, to four times the bytes. Fitted
to 400 problems of mm in the H200 table, with a mean error of 14%."""


@dataclass(frozen=True, slots=True)
class Saving:
    """Expected time of one call in microseconds: with ATen, and with the best config that tuning may find."""

    aten_us: float
    best_us: float

    @property
    def us(self) -> float:
        """Microseconds that tuning may save per call; 0 if none."""
        return max(self.aten_us - self.best_us, 0.0)


def trivial(problem: Problem) -> bool:
    """Return whether tuning cannot help a GEMM on any device: it is empty, or K is at most 1."""
    return problem.empty or problem.k <= 1


def saving(ask: Ask) -> Saving | None:
    """Return the savings from tuning the problem on the device; None on a CPU, where there is no estimate."""
    from gemmdb.cost.roofline import parts_us, roofline_us, work_us  # These import the cost model.
    from gemmdb.lookup.ranking import TREE_CANDIDATES, rank

    problem, device = ask.problem, ask.device
    if trivial(problem):
        return Saving(LEAST_US, LEAST_US)
    if device.kind != "cuda":
        return None
    if problem.int4 is not None:
        return _of_int4(problem, *parts_us(problem, device))
    if isinstance(ranked := rank(ask, TREE_CANDIDATES), Rejected):
        found = _of_kind(problem, roofline_us(problem, device))
    else:
        roof_us = roofline_us(problem, device)
        best_us = max(ranked.best[0].us * (1 - OPTIMISM), roof_us, LEAST_US)
        found = Saving(ranked.aten_us, min(best_us, ranked.aten_us))
        if problem.spec.batched:
            found = max(found, _of_kind(problem, roof_us), key=lambda one: one.us)
    return Saving(found.aten_us, found.aten_us) if work_us(problem, device) < TINY_US else found


def _of_kind(problem: Problem, roof_us: float) -> Saving:
    """Return the typical saving for GEMMs of this kind at this roofline."""
    launch_us, times, share = UNMODELLED[_kind(problem)]
    aten_us = launch_us + times * roof_us
    return Saving(aten_us, aten_us - share * max(aten_us - max(roof_us, LEAST_US), 0.0))


def _of_int4(problem: Problem, bytes_us: float, operations_us: float) -> Saving:
    """Return the typical saving for an int4 weight; 0 where ATen is faster."""
    tiled = problem.int4 is not None and problem.int4.inner
    aten, best = INT4_TILED if tiled else INT4_IN_ORDER
    if problem.constant and not tiled:
        aten = INT4_FOLDED
    aten_us = aten.us(bytes_us, operations_us)
    return Saving(aten_us, min(best.us(bytes_us, operations_us), aten_us))


def repaying(us: Mapping[Problem, float], calls: int, first_s: float, further_s: float) -> list[Problem]:
    """Return the problems whose tuning pays off within `calls` calls of their graph, largest savings first. `us`:
    microseconds that tuning each may save per call of the graph. `first_s`: tuning time in seconds for the first
    problem, `further_s` for each further one. Empty if they do not pay off even together.
    """
    saved_s = {problem: one * calls / 1e6 for problem, one in us.items()}
    order = sorted((p for p in us if saved_s[p] >= further_s), key=lambda p: (-us[p], p.text))
    taken_s = first_s + further_s * (len(order) - 1)
    return order if sum(saved_s[problem] for problem in order) >= taken_s else []


def _kind(problem: Problem) -> str:
    if problem.spec.batched:
        return "bmm"
    if problem.spec.grouped:
        return "groups"
    if problem.scaled:
        return "blocks" if problem.scales == "block" else "fp8"
    if problem.a.dtype == "fp32":
        return "fp32"
    return "mixed" if problem.spec.dequantises else "unaligned"
