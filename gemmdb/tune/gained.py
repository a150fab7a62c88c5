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
    """The program without and with gemmdb. `graphs`: those that both runs called, longest time first; `unmatched`: how
    many kinds only one side called often enough; `runs`: runs per side; `load`: how many cores other processes kept
    busy, in the run with the most; `disturbed`: what used them, if that disturbed the times."""

    graphs: tuple[Graph, ...]
    unmatched: int
    runs: int
    load: float = 0.0
    disturbed: str = ""

    @property
    def without(self) -> Span:
        """Microseconds of all calls of one run, without gemmdb."""
        return _total((one.calls, one.without) for one in self.graphs)

    @property
    def with_gemmdb(self) -> Span:
        """Microseconds of all calls of one run, with gemmdb."""
        return _total((one.calls, one.with_gemmdb) for one in self.graphs)

    @property
    def gain(self) -> Gain:
        """Speedup of the graphs with gemmdb."""
        return stats.gain(self.without, self.with_gemmdb) if self.graphs else Gain(1.0, 1.0, 1.0)

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
            "without_us": self.without.us, "with_us": self.with_gemmdb.us, "gain": self.gain.value,
            "interval": (self.gain.low, self.gain.high), "verdict": self.verdict, "runs": self.runs, "load": self.load,
            "disturbed": self.disturbed, "unmatched": self.unmatched,
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
    return Gained(tuple(graphs), int(item["unmatched"]), int(item["runs"]), float(item["load"]), str(item["disturbed"]))


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


def gained(without: Sequence[Times], with_gemmdb: Sequence[Times], load: float = 0.0, disturbed: str = "") -> Gained:
    """Compare the runs with gemmdb with those without. `load`, `disturbed`: as for Gained."""
    sides = (without, with_gemmdb)
    names, other_names = (set().union(*runs) for runs in sides)
    graphs = []
    for name in sorted(names & other_names):
        before, after = ([run[name] for run in runs if name in run] for runs in sides)
        calls = round(statistics.median(one.calls for one in before))
        graphs.append(Graph(name, max(one.kernels for one in after), calls, span(before), span(after)))
    graphs.sort(key=lambda one: -one.calls * one.without.us)
    return Gained(tuple(graphs), len(names ^ other_names), len(with_gemmdb), load, disturbed)


def span(runs: Iterable[Timed]) -> Span:
    """Return the median of all calls, and an interval that contains every run's median: processes vary more than
    calls."""
    every = [one.us for one in runs]
    spans = [stats.span(us) for us in every]
    middle = statistics.median([one for us in every for one in us])
    return Span(middle, min(one.low for one in spans), max(one.high for one in spans))
