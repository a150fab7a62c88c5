"""Functions for the isolated GPU process: load a candidate, check its result, capture it in a CUDA graph, time the
graphs.

The process keeps one problem with its candidates at a time, and every compiled kernel it ever loaded.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Collection, Sequence

import torch

from gemmdb.generators.effort import SAMPLE_US
from gemmdb.generators.measure.cuda import cublaslt, emitted
from gemmdb.generators.measure.cuda.bench import Bench, alive, capture, elapsed
from gemmdb.generators.measure.cuda.calls import Call, bind, reference
from gemmdb.generators.measure.cuda.measurer import Loaded, Round
from gemmdb.generators.measure.tolerance import acceptable
from gemmdb.inductor.benchmark.timers import single_us
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.processes.child import out_of_memory
from gemmdb.table.measurement import Protocol, Status, one_line
from gemmdb.table.stats import turns

MIN_ROUNDS, LONG_US = 7, 1.5e6
"""Minimum rounds of a measurement, and the time above which it has fewer rounds than requested samples."""
SPLIT_NOISE = 0.01
"""Tolerated slowdown against ATen on one split of the groups, relative: two processes differ by that much."""
MAX_SLOWDOWN = 1.5
"""A candidate this many times slower than the best gets no more samples in an estimate."""

_bench: Bench | None = None
_busy_us = 0.0
"""Microseconds of all replays on the GPU so far."""


def begin(inductor: bool) -> None:
    """Preload and start what the first measurement would otherwise wait for. `inductor`: also import the loader of
    emitted code, which takes two seconds."""
    with contextlib.suppress(Exception):  # The first measurement reports it.
        capture(None, Protocol("graph", "cold", 1, 1))
    ones = torch.ones(64, 64, dtype=torch.float64, device="cuda")
    _ = (ones @ ones).sum().item()
    if inductor:
        emitted.begin()


def expect(problem: Problem, configs: Sequence[Config]) -> None:
    """Load the emitted code of candidates that will be measured later; a load that fails now fails again then."""
    for config in configs:
        with contextlib.suppress(Exception):
            emitted.load(problem, config)


def proposed(problem: Problem, most: int) -> list[Config]:
    """See `cublaslt.proposed`."""
    return cublaslt.proposed(problem, most)


def near(problem: Problem, best: Sequence[Config], known: Collection[Config], most: int) -> list[Config]:
    """See `cublaslt.near`."""
    return cublaslt.near(problem, best, known, most)


def measure(problem: Problem, configs: Sequence[Config], protocol: Protocol, samples: int) -> Round:
    """Load candidates, ATen first, and time the correct ones with `samples` samples. All other candidates are unloaded.
    Ends early if a candidate leaves this process unable to use the GPU."""
    if _bench is not None and _bench.problem == problem:
        _bench.keep(configs)
    loads: dict[Config, Loaded] = {}
    for config in configs:
        loads[config] = load(problem, config, protocol)
        if loads[config].fatal:
            return Round(loads)
        aten = loads[ATEN]
        if aten.status is not Status.OK:
            status = Status.OOM if aten.status is Status.OOM else Status.ERROR
            lost = Loaded(status, detail=one_line(f"no reference: {aten.status}: {aten.detail}"))
            return Round({config: aten if config == ATEN else lost for config in configs})
    right = [config for config in configs if loads[config].status is Status.OK]
    before = _busy_us
    return Round(loads, time_round(problem, right, protocol, samples), _busy_us - before)


def load(problem: Problem, config: Config, protocol: Protocol) -> Loaded:
    """Prepare a candidate for timing: run it on random operands into poisoned memory, compare, capture a graph."""
    try:
        return _load(problem, config, protocol)
    except Exception as error:
        detail = one_line(f"{type(error).__name__}: {error}")
        usable = alive()
        # torch raises another exception when a library or the driver runs out of memory.
        if isinstance(error, torch.OutOfMemoryError) or (out_of_memory(detail) and usable):
            return Loaded(Status.OOM, detail=detail)
        return Loaded(Status.ERROR if usable else Status.CRASH, detail=detail, fatal=not usable)


def _load(problem: Problem, config: Config, protocol: Protocol) -> Loaded:
    global _bench
    if _bench is None or _bench.problem != problem:
        _bench = None
        _bench = Bench.of(problem)
    bench = _bench
    if config not in bench.calls:
        made = reference(problem, bench.copies) if config == ATEN else (*bind(problem, config, bench.copies), "")
        call, compile_s, detail = made
        error = bench.error(call)
        known = bench.loaded.get(ATEN)
        if not acceptable(problem, error, known.error if known and known.error is not None else error):
            return Loaded(Status.WRONG, error, compile_s)
        bench.calls[config], bench.loaded[config] = call, Loaded(Status.OK, error, compile_s, detail)
    call, splits, copies = bench.calls[config], len(bench.expected), len(bench.copies)
    if not bench.count:
        # As many as in the protocol, or fewer if the few microseconds of a replay no longer matter beside them.
        pairs = max(1, min(protocol.unroll, int(SAMPLE_US / max(single_us([lambda: call(0)])[0], 1.0))))
        bench.count = -(-pairs // splits)
    graphs = bench.graphs.setdefault(protocol.text, {})
    if protocol.l2 != "hot" and None not in graphs:
        graphs[None] = [capture(None, protocol, copies, bench.count)]
    if config not in graphs:

        def on_split(split: int) -> Call:
            return lambda index: call(split + index * splits)

        graphs[config] = [capture(on_split(split), protocol, copies // splits, bench.count) for split in range(splits)]
    return bench.loaded[config]


def time_round(
    problem: Problem, configs: Sequence[Config], protocol: Protocol, samples: int
) -> dict[Config, list[float]]:
    """Microseconds of one call, `samples` per config, ATen among them.

    A sample is the time of one replay of a graph of (flush, call) pairs, minus a replay of the flushes alone, per pair.
    Each round replays every graph once, in the order of `turns`. If `samples` rounds would take over
    LONG_US, there are fewer, but at least MIN_ROUNDS. In a short estimate (`samples` below the protocol's), candidates
    far behind after their first two replays take part in one round only.
    """
    if _bench is None or _bench.problem != problem:
        raise RuntimeError("the candidates of this problem are not loaded")
    graphs, count = _bench.graphs[protocol.text], _bench.count
    order: list[Config | None] = [None] if protocol.l2 != "hot" else []
    order += [ATEN, *(config for config in configs if config != ATEN)]
    first = {key: statistics.fmean(map(elapsed, graphs[key])) for key in order}
    rounds = min(samples, max(MIN_ROUNDS, int(LONG_US / max(sum(first.values()), 1.0))))
    times: dict[Config | None, list[list[float]]] = {key: [] for key in order}
    for index in range(rounds):
        for key in turns(order, index):
            times[key].append([elapsed(graph) for graph in graphs[key]])
        if index == 0 and samples < protocol.samples:
            us = {key: min(first[key], statistics.fmean(times[key][0])) for key in order}
            base = us.get(None, 0.0)
            limit = MAX_SLOWDOWN * max(min(time - base for key, time in us.items() if key is not None), 0.0)
            order = [key for key in order if key in (None, ATEN) or us[key] - base <= limit]
    global _busy_us
    _busy_us += sum(first[key] * len(graphs[key]) for key in first) + sum(sum(map(sum, one)) for one in times.values())
    empty = times.pop(None, [[0.0]] * rounds)
    return _over_splits({
        config: [[max(t - f, 0.01) / count for t in found] for found, (f,) in zip(all_found, empty, strict=False)]
        for config, all_found in times.items()
        if config is not None
    })  # fmt: skip


def _over_splits(us: dict[Config, list[list[float]]]) -> dict[Config, list[float]]:
    """Reduce the samples of each config on each split of a grouped_mm, a list per round, to their mean over the splits.

    The split is unknown at compile time, and no served config may be slower than ATen. So a candidate that is slower on
    one split, beyond noise, counts as if it were as slow on every split, relative to ATen, as on its worst.
    """
    splits = range(len(us[ATEN][0]))
    aten = [statistics.median(found[split] for found in us[ATEN]) for split in splits]
    mean = statistics.fmean(aten)

    def of(found: list[list[float]]) -> list[float]:
        slowdowns = [statistics.median(one[split] for one in found) / aten[split] for split in splits]
        worst = max(splits, key=lambda split: slowdowns[split])
        if slowdowns[worst] <= 1 + SPLIT_NOISE:
            return list(map(statistics.fmean, found))
        return [mean * one[worst] / aten[worst] for one in found]

    return {config: list(map(statistics.fmean, found)) if config == ATEN else of(found) for config, found in us.items()}
