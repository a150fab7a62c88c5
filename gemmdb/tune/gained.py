"""What gemmdb gained a program: the times of its compiled graphs, call by call, without gemmdb and with it."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmdb.table import stats
from gemmdb.table.stats import Gain, Span

Times = Mapping[tuple[str, ...], "Timed"]
"""The graphs of one run, by the names of their products."""


@dataclass(frozen=True, slots=True)
class Timed:
    """All graphs of one run with the same products. `us`: microseconds of single calls."""

    kernels: int
    calls: int
    us: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Graph:
    """One kind of graph. `products`: their names; `kernels`: how many run another kernel than ATen's with gemmdb;
    `calls`: of a run."""

    products: tuple[str, ...]
    kernels: int
    calls: int
    without: Span
    with_gemmdb: Span


@dataclass(frozen=True)
class Gained:
    """The program without and with gemmdb. `graphs`: those that both runs called, of most time first; `unmatched`: how
    many kinds only one of them called often enough; `runs`: of each; `load`: how many cores other processes kept busy
    before the first run."""

    graphs: tuple[Graph, ...]
    unmatched: int
    runs: int
    load: float = 0.0

    @property
    def without_us(self) -> float:
        """Microseconds of all calls of one run, without gemmdb."""
        return sum(one.calls * one.without.us for one in self.graphs)

    @property
    def with_us(self) -> float:
        """The same with gemmdb."""
        return sum(one.calls * one.with_gemmdb.us for one in self.graphs)

    @property
    def gain(self) -> float:
        """How many times faster the graphs are with gemmdb."""
        return self.without_us / self.with_us if self.graphs else 1.0

    @property
    def interval(self) -> tuple[float, float]:
        """The gain between the ends of both intervals."""
        if not self.graphs:
            return 1.0, 1.0
        low, high = (sum(one.calls * getattr(one.without, end) for one in self.graphs) for end in ("low", "high"))
        fast, slow = (sum(one.calls * getattr(one.with_gemmdb, end) for one in self.graphs) for end in ("low", "high"))
        return low / slow, high / fast

    @property
    def verdict(self) -> str:
        """`faster`, `slower`, `no difference` where the interval contains 1, `same kernels` where ATen runs all
        products, or `nothing was timed`."""
        if not self.graphs:
            return "nothing was timed"
        if not any(one.kernels for one in self.graphs):
            return "same kernels"
        return Gain(self.gain, *self.interval).verdict

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "without_us": self.without_us, "with_us": self.with_us, "gain": self.gain, "interval": self.interval,
            "verdict": self.verdict, "runs": self.runs, "load": self.load, "unmatched": self.unmatched,
            "graphs": [
                {
                    "products": list(one.products), "kernels": one.kernels, "calls": one.calls,
                    "without_us": [one.without.us, one.without.low, one.without.high],
                    "with_us": [one.with_gemmdb.us, one.with_gemmdb.low, one.with_gemmdb.high],
                }
                for one in self.graphs
            ],
        }  # fmt: skip


def of_dict(item: Mapping[str, Any]) -> Gained:
    """What `as_dict` returned. Raises KeyError, TypeError or ValueError for anything else."""
    graphs = (
        Graph(
            tuple(map(str, one["products"])), int(one["kernels"]), int(one["calls"]),
            Span(*map(float, one["without_us"])), Span(*map(float, one["with_us"])),
        )
        for one in item["graphs"]
    )  # fmt: skip
    return Gained(tuple(graphs), int(item["unmatched"]), int(item["runs"]), float(item["load"]))


def read(folder: Path) -> dict[tuple[str, ...], Timed]:
    """The graphs that the processes of one run wrote into a folder. Graphs without timed calls are left out."""
    kernels: dict[tuple[str, ...], int] = {}
    calls: dict[tuple[str, ...], int] = defaultdict(int)
    us: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for path in sorted(folder.glob("times-*.json")):
        for graph in json.loads(path.read_text())["graphs"]:
            name = tuple(graph["products"])
            kernels[name] = max(kernels.get(name, 0), graph["kernels"])
            calls[name] += graph["calls"]
            us[name] += graph["us"]
    return {name: Timed(kernels[name], calls[name], tuple(us[name])) for name in calls if us[name]}


def gained(without: Sequence[Times], with_gemmdb: Sequence[Times], load: float = 0.0) -> Gained:
    """What the runs with gemmdb gained over those without."""
    ours, theirs = set().union(*with_gemmdb), set().union(*without)
    graphs = [_graph(name, without, with_gemmdb) for name in sorted(ours & theirs)]
    graphs.sort(key=lambda one: -one.calls * one.without.us)
    return Gained(tuple(graphs), len(ours ^ theirs), len(with_gemmdb), load)


def _graph(name: tuple[str, ...], without: Sequence[Times], with_gemmdb: Sequence[Times]) -> Graph:
    before, after = ([run[name] for run in runs if name in run] for runs in (without, with_gemmdb))
    calls = round(statistics.median(one.calls for one in before))
    return Graph(name, max(one.kernels for one in after), calls, span(before), span(after))


def span(runs: Iterable[Timed]) -> Span:
    """The median of all calls, and the interval that holds those of every single run: processes differ by more than
    calls do."""
    every = [one.us for one in runs]
    spans = [stats.span(us) for us in every]
    middle = statistics.median([one for us in every for one in us])
    return Span(middle, min(one.low for one in spans), max(one.high for one in spans))
