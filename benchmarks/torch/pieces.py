"""The work of `symbolic`: the piece of a decoder between two attentions, compiled for a fixed or a symbolic number of
rows, captured at each size, and replayed in turn."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import gemmdb.inductor
from benchmarks.torch import block_times, llama
from benchmarks.torch.llama import Piece
from gemmdb.hit import ATEN_BETWEEN
from gemmdb.inductor.benchmark.limits import BUDGET
from gemmdb.kernels.config import ATEN
from gemmdb.table.stats import turns

Run = Callable[[Tensor, Tensor], Any]
MODES: dict[str, dict[str, Any]] = {"default": {}, "gemmdb": {"backend": "gemmdb"}}
MOST_REPLAYS, LEAST_MS = 20, 1.0
"""A sample replays a graph that often, but fewer times once a sample is that long."""


@dataclass
class Compiled:
    """A compiled piece, and the facts of its compile. It is valid until the next compile begins."""

    run: Run
    facts: dict[str, Any]


@dataclass
class Captured:
    """A CUDA graph of one call, which writes `qkv`."""

    graph: torch.cuda.CUDAGraph
    qkv: Tensor


def inputs(shape: llama.Shape, rows: int, device: str) -> tuple[Tensor, Tensor]:
    """The arguments of a Piece."""
    sizes = shape.heads * shape.head, shape.hidden
    attended, x = (torch.randn(rows, size, device=device).to(torch.bfloat16) for size in sizes)
    return attended, x


@contextmanager
def fresh() -> Iterator[None]:
    """As in a new process of a new user: no graph, no measured row, the whole budget."""
    torch._dynamo.reset()
    gemmdb.inductor.reset_stats()
    BUDGET.clear()
    before = os.environ.get("XDG_DATA_HOME")
    with tempfile.TemporaryDirectory() as folder, torch._inductor.utils.fresh_inductor_cache():
        os.environ["XDG_DATA_HOME"] = folder
        gemmdb.refresh()
        try:
            yield
        finally:
            os.environ.pop("XDG_DATA_HOME") if before is None else os.environ.update(XDG_DATA_HOME=before)
            gemmdb.refresh()


def compiled(piece: Piece, mode: str, rows: int, options: dict[str, Any]) -> Compiled:
    """Compile the piece for a number of rows. `options`: `bounds` of the rows if they are symbolic, the `shape`, the
    `device`, and `on_miss`: `default` for that of users."""
    given, bounds = inputs(options["shape"], rows, options["device"]), options.get("bounds")
    how = dict(MODES[mode])
    if mode == "gemmdb" and options["on_miss"] != "default":
        how["options"] = {"gemmdb.on_miss": options["on_miss"]}
    if bounds is not None:
        for one in given:
            torch._dynamo.mark_dynamic(one, 0, min=bounds[0], max=bounds[1])
    with fresh(), torch.no_grad():
        start = time.perf_counter()
        run = torch.compile(piece, dynamic=None if bounds else False, **how)
        run(*given)
        settled(given[0].device)
        facts: dict[str, Any] = {"compile_s": time.perf_counter() - start}
        if mode == "gemmdb":
            stats = gemmdb.inductor.stats()
            facts |= {name: stats[name] for name in ("benchmarked", "products", "errors")}
    return Compiled(run, facts)


def settled(device: torch.device) -> None:
    """Wait for the GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def beside(piece: Piece, rows: int, options: dict[str, Any]) -> dict[str, Run]:
    """Compile the piece in all modes for symbolic rows, so that all stay compiled. Takes the arguments of `compiled`
    without the mode; `options` has `bounds`."""
    given, (low, high) = inputs(options["shape"], rows, options["device"]), options["bounds"]
    for one in given:
        torch._dynamo.mark_dynamic(one, 0, min=low, max=high)
    with fresh(), torch.no_grad():
        runs: dict[str, Run] = {mode: torch.compile(piece, **how) for mode, how in MODES.items()}
        for run in runs.values():
            run(*given)
    return runs


def host_us(runs: Mapping[str, Run], given: tuple[Tensor, Tensor], calls: int = 300) -> dict[str, float]:
    """Microseconds that the host takes for a call, without a CUDA graph: the median of each, taken in turn, since the
    speed of a host changes within seconds. The GPU is idle at the start of each call."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):
        for index in range(calls):
            for name in turns(list(runs), index):
                settled(given[0].device)
                start = time.perf_counter()
                runs[name](*given)
                found[name].append(1e6 * (time.perf_counter() - start))
    return {name: statistics.median(taken) for name, taken in found.items()}


def captured(run: Run, given: tuple[Tensor, Tensor]) -> Captured:
    """Capture one call. Raises an error if the call compiles anew."""
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):
        graph, (qkv, _) = block_times.captured(lambda: run(*given))
    return Captured(graph, qkv)


def check(captures: dict[str, Captured]) -> None:
    """Raise AssertionError if the results of a replay differ from the first one's by more than rounding."""
    wanted = next(iter(captures.values())).qkv.float()
    for name, one in captures.items():
        apart = ((one.qkv.float() - wanted).norm() / wanted.norm()).item()
        assert apart < 0.02, f"the result of {name} differs by {apart:.3f}"


def timed(captures: dict[str, Captured], seconds: float) -> dict[str, list[float]]:
    """Microseconds of a replay of each graph, in rounds, in the order of `turns`. Weights are larger than the cache, so
    they are cold."""
    names = list(captures)
    first = max(_replayed(captures[name], 1) for name in names)
    replays = max(1, min(MOST_REPLAYS, int(1e3 * LEAST_MS / first)))
    times: dict[str, list[float]] = {name: [] for name in names}
    until, rounds = time.monotonic() + seconds, 0
    while rounds < 9 or (rounds < 200 and time.monotonic() < until):
        for name in turns(names, rounds):
            times[name].append(_replayed(captures[name], replays))
        rounds += 1
    return times


def _replayed(one: Captured, replays: int) -> float:
    """Microseconds of one replay, the mean of some in a row."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(replays):
        one.graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / replays


def configs(facts: dict[str, Any], sizes: Sequence[int]) -> dict[str, list[str]]:
    """What serves each GEMM: its text without M, and the config; for a symbolic compile the config at each size."""
    found: dict[str, list[str]] = {}
    for one in facts.get("products", ()):
        parts = one["evidence"].get("kernels")
        between = one["evidence"].get(ATEN_BETWEEN, ())
        chosen = [one["config"]] if not parts else [served(parts, rows, between) for rows in sizes]
        found[one["problem"]] = [*chosen, one["note"]] if one["note"] else chosen
    return found


def served(parts: Sequence[dict[str, Any]], rows: int, between: Sequence[Sequence[int]] = ()) -> str:
    """The config of a divided range at a number of rows. `between`: the parts that ATen serves between two sizes."""
    if any(first <= rows <= last for first, last in between):
        return ATEN.text
    return str(next((part["config"] for part in parts if rows <= part["m"][-1]), parts[-1]["config"]))
