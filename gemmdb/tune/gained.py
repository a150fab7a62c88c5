"""A program's speedup from gemmdb: the times of its compiled graphs, call by call, without and with gemmdb."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from gemmdb.table import stats
from gemmdb.table.stats import Gain, Span
from gemmdb.tune import runs as between

Times = Mapping[tuple[str, ...], "Timed"]
"""Graphs of one run, by the names of their GEMMs."""


@dataclass(frozen=True, slots=True)
class Timed:
    """All graphs of one run with the same GEMMs. `us`: microseconds of single calls."""

    kernels: int
    calls: int
    us: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Graph:
    """One kind of graph. `products`: the names of its GEMMs; `kernels`: how many do not run ATen with gemmdb; `calls`:
    calls per run."""

    products: tuple[str, ...]
    kernels: int
    calls: int
    without: Span
    with_gemmdb: Span


@dataclass(frozen=True)
class Gained:
    """The program without and with gemmdb. `graphs`: those that all runs called, longest time first; `unmatched`: how
    many kinds only some called often enough; `runs`: runs per side; `load`: how many cores other processes kept
    busy, in the run with the most; `disturbed`: what used them, if that disturbed the times; `totals_us`: microseconds
    of all calls of each run without and with gemmdb; `looks`: as of `runs.gain`."""

    graphs: tuple[Graph, ...]
    unmatched: int
    runs: int
    load: float = 0.0
    disturbed: str = ""
    totals_us: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
    looks: bool = False

    @property
    def without_us(self) -> float:
        """Microseconds of all calls of one run, without gemmdb: the geometric mean."""
        return statistics.geometric_mean(self.totals_us[0]) if self.graphs else 0.0

    @property
    def with_us(self) -> float:
        """Microseconds of all calls of one run, with gemmdb: the geometric mean."""
        return statistics.geometric_mean(self.totals_us[1]) if self.graphs else 0.0

    @property
    def gain(self) -> Gain:
        """Speedup of the graphs with gemmdb: its interval is that of the runs, or of the calls of a single run."""
        if not self.graphs:
            return Gain(1.0, 1.0, 1.0)
        if self.runs >= between.LEAST:
            return between.gain(*self.totals_us, self.looks)
        sides = zip(*(((one.calls, one.without), (one.calls, one.with_gemmdb)) for one in self.graphs), strict=True)
        return stats.gain(*map(_total, sides))

    @property
    def is_certain(self) -> bool:
        """Whether more runs would say no more."""
        return bool(self.disturbed) or self.verdict in ("nothing was timed", "same kernels") or (
            self.runs >= between.LEAST and between.is_certain(self.gain)
        )  # fmt: skip

    @property
    def verdict(self) -> str:
        """`faster`, `slower`, `no difference` where the interval contains 1, `same kernels` where ATen runs all GEMMs,
        `cannot tell` if other programs disturbed the times, or `nothing was timed`."""
        if not self.graphs:
            return "nothing was timed"
        if not any(one.kernels for one in self.graphs):
            return "same kernels"
        return "cannot tell" if self.disturbed else self.gain.verdict

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "without_us": self.without_us, "with_us": self.with_us, "gain": self.gain.value,
            "interval": (self.gain.low, self.gain.high), "verdict": self.verdict, "runs": self.runs, "load": self.load,
            "disturbed": self.disturbed, "unmatched": self.unmatched, "totals_us": list(map(list, self.totals_us)),
            "looks": self.looks,
            "graphs": [
                {
                    "products": list(one.products), "kernels": one.kernels, "calls": one.calls,
                    "without_us": list(astuple(one.without)), "with_us": list(astuple(one.with_gemmdb)),
                }
                for one in self.graphs
            ],
        }  # fmt: skip


def _total(spans: Iterable[tuple[int, Span]]) -> Span:
    """Return the sum of the spans of single calls, each weighted by its number of calls."""
    parts = [(calls * one.us, calls * one.low, calls * one.high) for calls, one in spans]
    return Span(sum(us for us, _, _ in parts), sum(low for _, low, _ in parts), sum(high for _, _, high in parts))


def of_dict(item: Mapping[str, Any]) -> Gained:
    """Return the Gained from an `as_dict` result. Raises KeyError, TypeError or ValueError for anything else."""
    graphs = (
        Graph(
            tuple(map(str, one["products"])), int(one["kernels"]), int(one["calls"]),
            Span(*map(float, one["without_us"])), Span(*map(float, one["with_us"])),
        )
        for one in item["graphs"]
    )  # fmt: skip
    before, after = (tuple(map(float, side)) for side in item["totals_us"])
    return Gained(
        tuple(graphs), int(item["unmatched"]), int(item["runs"]), float(item["load"]), str(item["disturbed"]),
        (before, after), item["looks"] is True,
    )  # fmt: skip


def read(folder: Path) -> dict[tuple[str, ...], Timed]:
    """Read the graphs that the processes of one run wrote to a folder. Graphs without timed calls are left out."""
    found: dict[tuple[str, ...], Timed] = {}
    for path in sorted(folder.glob("times-*.json")):
        for graph in json.loads(path.read_text())["graphs"]:
            name = tuple(graph["products"])
            known = found.get(name, Timed(0, 0, ()))
            kernels, us = max(known.kernels, graph["kernels"]), (*known.us, *graph["us"])
            found[name] = Timed(kernels, known.calls + graph["calls"], us)
    return {name: timed for name, timed in found.items() if timed.us}


def gained(
    without: Sequence[Times], with_gemmdb: Sequence[Times], load: float = 0.0, disturbed: str = "", looks: bool = False
) -> Gained:
    """Compare the runs with gemmdb with those without. `load`, `disturbed`, `looks`: as for Gained."""
    sides = (without, with_gemmdb)
    every = [set(run) for runs in sides for run in runs]
    names = set.intersection(*every) if every else set()
    graphs = []
    for name in sorted(names):
        before, after = ([run[name] for run in runs] for runs in sides)
        calls = round(statistics.median(one.calls for one in before))
        graphs.append(Graph(name, max(one.kernels for one in after), calls, span(before), span(after)))
    graphs.sort(key=lambda one: -one.calls * one.without.us)
    first, second = (tuple(_total_us(run, graphs) for run in runs) for runs in sides)
    unmatched = len(set().union(*every) - names)
    return Gained(tuple(graphs), unmatched, len(with_gemmdb), load, disturbed, (first, second), looks)


def _total_us(run: Times, graphs: Iterable[Graph]) -> float:
    """Return the microseconds of all calls in a run, if each graph was called as often as in the others."""
    return sum(one.calls * statistics.median(run[one.products].us) for one in graphs)


def span(runs: Iterable[Timed]) -> Span:
    """Return the median of all calls, and an interval that contains every run's median: processes vary more than
    calls."""
    every = [one.us for one in runs]
    spans = [stats.span(us) for us in every]
    middle = statistics.median([one for us in every for one in us])
    return Span(middle, min(one.low for one in spans), max(one.high for one in spans))
