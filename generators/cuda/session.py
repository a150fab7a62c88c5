"""What runs inside a GPU worker: load a candidate, check its result, capture it in a CUDA graph, time the graphs.

The worker keeps one problem with its candidates at a time, and every compiled kernel it ever loaded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gemmdb.config import ATEN, Config
from gemmdb.generators.cuda import elementwise
from gemmdb.generators.cuda.compile import compile_unit
from gemmdb.generators.cuda.render import Launch, Plan, Unit, plan
from gemmdb.generators.program import FP32_MODES, SCALARS, operands, to_torch
from gemmdb.generators.reference import Reference, acceptable, reference
from gemmdb.measurement import Protocol, Status, one_line
from gemmdb.problem import Problem

FLUSH_WORDS = 64 * 2**20
"""int32 words that a flush reads: 256 MiB, several times any L2."""
WARMUP = 2
_SEED = 2


@dataclass(frozen=True)
class Loaded:
    """What became of loading a candidate. `fatal`: the process can do no further work on the GPU."""

    status: Status
    error: float | None = None
    compile_s: float | None = None
    detail: str = ""
    fatal: bool = False


Graphs = dict[Config | None, torch.cuda.CUDAGraph]


@dataclass
class Bench:
    """One problem set up for measuring. `graphs` holds, per protocol, each candidate's graph and, under None, the
    flush alone."""

    problem: Problem
    tensors: dict[str, torch.Tensor]
    expected: Reference
    calls: dict[Config, Callable[[], None]] = field(default_factory=dict)
    loaded: dict[Config, Loaded] = field(default_factory=dict)
    graphs: dict[str, Graphs] = field(default_factory=dict)


_bench: Bench | None = None
_kernels: dict[str, tuple[Any, float]] = {}
_scratch: dict[int, torch.Tensor] = {}
_flush: list[torch.Tensor] = []


def load(problem: Problem, config: Config, protocol: Protocol) -> Loaded:
    """Make a candidate ready to be timed: run it on random operands into poisoned memory, compare, capture a graph."""
    try:
        return _load(problem, config, protocol)
    except torch.OutOfMemoryError as error:
        return Loaded(Status.OOM, detail=one_line(str(error)))
    except Exception as error:
        detail = one_line(f"{type(error).__name__}: {error}")
        fatal = not _alive()
        return Loaded(Status.CRASH if fatal else Status.ERROR, detail=detail, fatal=fatal)


def unload(problem: Problem, configs: Sequence[Config]) -> None:
    """Forget candidates that are out of the race."""
    if _bench is not None and _bench.problem == problem:
        for config in configs:
            _bench.calls.pop(config, None)
            for graphs in _bench.graphs.values():
                graphs.pop(config, None)


def time_round(
    problem: Problem, configs: Sequence[Config], protocol: Protocol, samples: int
) -> dict[Config, list[float]]:
    """Microseconds of one call, `samples` per config, ATen among them. A sample is one replay of a graph of `unroll`
    (flush, call) pairs less a replay of the flushes alone; each round replays every graph once, starting with another
    one each time."""
    if _bench is None or _bench.problem != problem:
        raise RuntimeError("the candidates of this problem are not loaded")
    graphs = _bench.graphs[protocol.text]
    order: list[Config | None] = [None] if protocol.l2 == "cold" else []
    order += [ATEN, *(config for config in configs if config != ATEN)]
    for key in order:
        _elapsed(graphs[key])
    times: dict[Config | None, list[float]] = {key: [] for key in order}
    for index in range(samples):
        for turn in range(len(order)):
            key = order[(index + turn) % len(order)]
            times[key].append(_elapsed(graphs[key]))
    empty = times.pop(None, [0.0] * samples)
    return {
        config: [max(t - f, 0.01) / protocol.unroll for t, f in zip(found, empty, strict=True)]
        for config, found in times.items()
        if config is not None
    }


def floor_us(problem: Problem, protocol: Protocol, samples: int) -> list[float]:
    """Microseconds of a streaming read of as many bytes as the weight has, under the same protocol."""
    words = max(problem.n * problem.k * to_torch(problem.b.dtype).itemsize // 4, 1)
    data = torch.ones(words, dtype=torch.int32, device="cuda")
    names = {"data": data, "sink": _flush_buffer()[1]}
    graph = _capture(_launcher(elementwise.read(words), names, {"elements": words}), protocol)
    empty = _capture(None, protocol)
    _elapsed(graph), _elapsed(empty)
    return [max(_elapsed(graph) - _elapsed(empty), 0.01) / protocol.unroll for _ in range(samples)]


def _load(problem: Problem, config: Config, protocol: Protocol) -> Loaded:
    bench = _setup(problem)
    if config not in bench.calls:
        call, compile_s = _aten(bench) if config == ATEN else _ours(bench, plan(problem, config))
        error = _check(bench, call)
        aten = bench.loaded.get(ATEN)
        if not acceptable(problem, error, aten.error if aten and aten.error is not None else error):
            return Loaded(Status.WRONG, error, compile_s)
        bench.calls[config], bench.loaded[config] = call, Loaded(Status.OK, error, compile_s)
    graphs = bench.graphs.setdefault(protocol.text, {})
    if protocol.l2 == "cold" and None not in graphs:
        graphs[None] = _capture(None, protocol)
    if config not in graphs:
        graphs[config] = _capture(bench.calls[config], protocol)
    return bench.loaded[config]


def _setup(problem: Problem) -> Bench:
    global _bench
    if _bench is None or _bench.problem != problem:
        _bench = None
        torch.set_float32_matmul_precision(FP32_MODES[problem.numerics.fp32])
        torch.use_deterministic_algorithms(problem.numerics.deterministic)
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = problem.numerics.reduced
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = problem.numerics.reduced
        device = torch.device("cuda")
        made = operands(problem, device, _SEED)
        expected = reference(problem, made)
        tensors = {"A": made.a, "B": made.b, "bias": made.bias, "scale": made.scale}
        out = torch.empty(problem.m, problem.n, dtype=to_torch(problem.out), device=device)
        _bench = Bench(problem, {name: t for name, t in tensors.items() if t is not None} | {"out": out}, expected)
    return _bench


def _check(bench: Bench, call: Callable[[], None]) -> float:
    """The error of a run into poisoned memory; it runs twice, since the first run may leave scratch behind."""
    out = bench.tensors["out"]
    for _ in range(2):
        out.fill_(float("nan") if out.is_floating_point() else torch.iinfo(out.dtype).min)
        call()
    torch.cuda.synchronize()
    return bench.expected.error(out)


def _ours(bench: Bench, made: Plan) -> tuple[Callable[[], None], float]:
    problem = bench.problem
    acc = torch.int32 if problem.op == "int_mm" else torch.float32
    names = dict(bench.tensors)
    names["partials"] = torch.empty(max(made.partials, 1), dtype=acc, device="cuda")
    names["counters"] = torch.zeros(max(made.counters, 1), dtype=torch.int32, device="cuda")
    sizes = _sizes(problem, names)
    pairs = [(_kernel(launch.unit), launch) for launch in made.launches]
    steps = [_launcher(launch, names, sizes) for _, launch in pairs]

    def call() -> None:
        for step in steps:
            step()

    return call, sum(seconds for (_, seconds), _ in pairs)


def _aten(bench: Bench) -> tuple[Callable[[], None], float]:
    """What Inductor's default does: a cast of the weight, one ATen call, one pointwise kernel, as far as needed."""
    problem, names = bench.problem, bench.tensors
    before: Callable[[], None] | None = None
    weight = names["B"]
    if problem.op == "mixed_mm":
        names["cast"] = torch.empty_like(weight, dtype=to_torch(problem.a.dtype))
        before = _launcher(elementwise.cast(problem), names, {"elements": problem.n * problem.k})
        weight = names["cast"]
    after, product = None, names["out"]
    if problem.fusion != "none" or (problem.op == "mixed_mm" and problem.bias is not None):
        kind = "int32" if problem.op == "int_mm" else problem.a.dtype
        product = names["product"] = torch.empty(problem.m, problem.n, dtype=to_torch(kind), device="cuda")
        after = _launcher(elementwise.after(problem, kind), names, _sizes(problem, names))
    alpha, beta = SCALARS[problem.scalars]

    def call() -> None:
        if before is not None:
            before()
        if problem.op == "int_mm":
            torch._int_mm(names["A"], weight, out=product)
        elif problem.op == "addmm":
            torch.addmm(names["bias"], names["A"], weight, alpha=alpha, beta=beta, out=product)
        else:
            torch.mm(names["A"], weight, out=product)
        if after is not None:
            after()

    return call, 0.0


def _sizes(problem: Problem, names: dict[str, torch.Tensor]) -> dict[str, int]:
    sizes = {"M": problem.m, "N": problem.n, "K": problem.k}
    leading = {"lda": max(names["A"].stride()), "ldb": max(names["B"].stride())}
    return {**sizes, **{f"arg_{name}": size for name, size in sizes.items()}, **leading}


def _launcher(launch: Launch, names: dict[str, torch.Tensor], sizes: dict[str, int]) -> Callable[[], None]:
    kernel, _ = _kernel(launch.unit)
    arguments = [names[n] if t.startswith("*") else sizes[n] for n, t in launch.unit.args]
    for name, argument in zip(launch.unit.args, arguments, strict=True):
        if isinstance(argument, torch.Tensor) and argument.data_ptr() % 16:
            raise RuntimeError(f"{name[0]} is not 16-byte aligned")
    run = kernel[launch.grid]
    return lambda: run(*arguments)


def _kernel(unit: Unit) -> tuple[Any, float]:
    if unit.key not in _kernels:
        import triton

        triton.set_allocator(_allocate)
        major, minor = torch.cuda.get_device_capability()
        done = compile_unit(unit, major * 10 + minor)
        if done.failure:
            raise RuntimeError(done.failure)
        _kernels[unit.key] = done.kernel, done.seconds
    return _kernels[unit.key]


def _allocate(size: int, _alignment: int, _stream: int | None) -> torch.Tensor:
    # Tensor maps of one launch are dead when the next one runs, and graphs need an address that stays.
    if size not in _scratch:
        _scratch[size] = torch.empty(size, dtype=torch.int8, device="cuda")
    return _scratch[size]


def _flush_buffer() -> list[torch.Tensor]:
    if not _flush:
        _flush.append(torch.zeros(FLUSH_WORDS, dtype=torch.int32, device="cuda"))
        _flush.append(torch.zeros(1, dtype=torch.int32, device="cuda"))
    return _flush


def _capture(call: Callable[[], None] | None, protocol: Protocol) -> torch.cuda.CUDAGraph:
    """A graph of `unroll` calls, each after a flush when the protocol is cold; None stands for no call."""
    steps: list[Callable[[], None]] = []
    if protocol.l2 == "cold":
        data, sink = _flush_buffer()
        steps.append(_launcher(elementwise.read(FLUSH_WORDS), {"data": data, "sink": sink}, {"elements": FLUSH_WORDS}))
    steps += [call] if call is not None else []
    stream = _capture_stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(WARMUP):
            for step in steps:
                step()
        stream.synchronize()
        # torch.cuda.graph() would also collect garbage and empty the allocator's cache, which takes longer than timing.
        graph.capture_begin()
        for _ in range(protocol.unroll):
            for step in steps:
                step()
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph


@functools.cache
def _capture_stream() -> torch.cuda.Stream:
    # One for all captures: cuBLAS keeps a workspace per stream.
    return torch.cuda.Stream()


def _elapsed(graph: torch.cuda.CUDAGraph) -> float:
    """Microseconds of one replay."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def _alive() -> bool:
    try:
        torch.cuda.synchronize()
    except Exception:
        return False
    return True
