"""The work of `models`: compile a model in several modes, capture a step of each, replay the steps in turn."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

import gemmdb.inductor
from benchmarks.torch import llama
from benchmarks.torch.timeline import Timeline, profiled
from gemmdb.table.stats import turns

HOPELESS = 20
"""A step that takes this many times as long as the fastest is timed once."""
MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "gemmdb": {"backend": "gemmdb", "options": {"gemmdb.on_miss": "aten"}},
    "gemmdb-invariant": {"backend": "gemmdb", "options": {"gemmdb.batch_invariant": True}},
    "max-autotune": {"mode": "max-autotune-no-cudagraphs"},
}
"""How torch.compile is called."""


@dataclass
class Step:
    """A captured variant: a replay of `graph` computes `logits`."""

    graph: torch.cuda.CUDAGraph
    logits: torch.Tensor
    facts: dict[str, Any]


def captured(model: llama.Decoder, mode: str, inputs: tuple[torch.Tensor, ...]) -> Step:
    """Compile the model's layers in a mode and capture one step."""
    torch._dynamo.reset()
    gemmdb.inductor.reset_stats()
    blocks: list[Callable[..., Any]] = [torch.compile(block, **MODES[mode]) for block in model.blocks]
    head = torch.compile(model.head, **MODES[mode])

    def step() -> torch.Tensor:
        x, *others = inputs
        for block in blocks:
            x = block(x, *others)
        return torch.as_tensor(head(x))

    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    facts: dict[str, Any] = {"compile_s": time.perf_counter() - start}
    if mode.startswith("gemmdb"):
        stats = gemmdb.inductor.stats()
        facts |= {"benchmarked": stats["benchmarked"], "products": stats["products"], "errors": stats["errors"]}
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = step()
    return Step(graph, logits, facts)


def in_turn(steps: dict[str, Step], seconds: float) -> dict[str, list[float]]:
    """Milliseconds of each step. Each round replays all of them once, in the order of `turns`. A step that takes
    HOPELESS times as long as the fastest keeps its first time: a prefill with `_weight_int8pack_mm` takes half a
    minute."""
    first = {name: replayed(step) for name, step in steps.items()}
    names = [name for name, ms in first.items() if ms <= HOPELESS * min(first.values())]
    times: dict[str, list[float]] = {name: [] for name in names}
    until, rounds = time.monotonic() + seconds, 0
    while rounds < 5 or (rounds < 200 and time.monotonic() < until):
        for name in turns(names, rounds):
            times[name].append(replayed(steps[name]))
        rounds += 1
    return {name: times.get(name, [first[name]] * 2) for name in steps}


def replayed(step: Step) -> float:
    """Milliseconds of one replay."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    step.graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def measure(shape: llama.Shape, run: llama.Run, tokens: int, options: argparse.Namespace) -> dict[str, Any]:
    """The times and facts of all variants for one number of rows and tokens. If a variant fails, its reason is kept
    and the others go on."""
    began = time.monotonic()
    inputs = llama.inputs(shape, run, tokens)
    steps: dict[str, Step] = {}
    found: dict[str, Any] = {"rows": run.rows, "tokens": tokens, "layers": shape.layers, "failures": {}}
    models: list[llama.Decoder] = []  # A captured graph reads weights that it does not own.
    for weights in options.weights.split(","):
        torch.manual_seed(0)
        model = llama.Decoder(shape, replace(run, weights=weights)).eval()
        models.append(model)
        found.setdefault("limit_ms", {})[weights] = 1e3 * llama.read_bytes(model) / options.bandwidth
        for mode in options.modes.split(","):
            name = f"{weights}/{mode}"
            if time.monotonic() - began > 60 * options.minutes:
                found["failures"][name] = "left out: out of time"
                continue
            try:
                steps[name] = captured(model, mode, inputs)
                print(name, {**steps[name].facts, "products": None}, flush=True)
            except Exception as error:
                found["failures"][name] = f"{type(error).__name__}: {error}"[:2000]
                print(name, found["failures"][name], flush=True)
    taken = in_turn(steps, options.seconds)
    if options.trace:
        found["trace"] = {name: Timeline.of(profiled(step.graph.replay)).as_dict() for name, step in steps.items()}
    found["ms"] = {name: statistics.quantiles(values, n=4) for name, values in taken.items()}
    found["taken"] = taken
    found["facts"] = {name: step.facts for name, step in steps.items()}
    found["difference"] = {name: _difference(steps, name) for name in steps}
    return found


def _difference(steps: dict[str, Step], name: str) -> float | None:
    """The relative distance, in the Euclidean norm, of a variant's logits from those of default mode for the same
    weights."""
    reference = steps.get(f"{name.split('/')[0]}/default")
    if reference is None:
        return None
    expected = reference.logits.double()
    return float((steps[name].logits.double() - expected).norm() / expected.norm())
