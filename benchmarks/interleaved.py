"""Time compiled calls in turn, by the protocol of the tables. Imports torch; needs a GPU."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import torch

from benchmarks.compiling import Call
from gemmdb.generators.measure.cuda.bench import capture, elapsed
from gemmdb.table.measurement import Protocol
from gemmdb.table.stats import turns


def timed(calls: Mapping[str, Call], copies: int, protocol: Protocol) -> dict[str, list[float]]:
    """Quartiles of the microseconds of one call, by name."""
    return {name: quartiles(found) for name, found in rounds(calls, copies, protocol).items()}


def rounds(calls: Mapping[str, Call], copies: int, protocol: Protocol) -> dict[str, list[float]]:
    """Microseconds of one call in each round, by name."""
    return replayed({name: capture(call, protocol, copies) for name, call in calls.items()}, protocol)


def replayed(captured: Mapping[str, torch.cuda.CUDAGraph], protocol: Protocol) -> dict[str, list[float]]:
    """Microseconds of one call in each round, by name, from graphs that `capture` made by this protocol. The graphs are
    replayed in turn, in the order of `turns`. The time of an empty graph is subtracted."""
    graphs = {**captured, "": capture(None, protocol)}
    names = list(graphs)
    times: dict[str, list[float]] = {name: [] for name in names}
    for index in range(protocol.samples + 1):
        for name in turns(names, index):
            times[name].append(elapsed(graphs[name]))
    empty = times.pop("")
    return {
        name: [(t - f) / protocol.unroll for t, f in zip(found, empty, strict=True)][1:]
        for name, found in times.items()
    }


def quartiles(times: Sequence[float]) -> list[float]:
    """First quartile, median, third quartile."""
    return statistics.quantiles(times, n=4)
