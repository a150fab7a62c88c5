"""What runs inside a GPU worker: load a candidate, check its result, capture it in a CUDA graph, time the graphs.

The worker keeps one problem with its candidates at a time, and every compiled kernel it ever loaded.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from gemmdb.config import ATEN, Config
from gemmdb.generators.cuda import elementwise
from gemmdb.generators.cuda.calls import Call, Tensors, bind, launcher
from gemmdb.generators.cuda.graphs import capture, elapsed, sink_buffer
from gemmdb.generators.program import FP32_MODES, operands, to_torch
from gemmdb.generators.reference import Reference, acceptable, reference
from gemmdb.measurement import Protocol, Status, one_line
from gemmdb.problem import Problem

COPIES, COPIED_BYTES = 10, 2**30
"""At most that many copies of the operands, as long as they take no more bytes than that."""
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
    flush alone.

    `copies` are equal operands and outputs at different addresses, which the calls of a graph take in turn: where a
    buffer lies in memory changes a kernel's time by up to a tenth, and that is no property of the kernel.
    """

    problem: Problem
    copies: list[Tensors]
    expected: Reference
    calls: dict[Config, Call] = field(default_factory=dict)
    loaded: dict[Config, Loaded] = field(default_factory=dict)
    graphs: dict[str, Graphs] = field(default_factory=dict)


_bench: Bench | None = None


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
        elapsed(graphs[key])
    times: dict[Config | None, list[float]] = {key: [] for key in order}
    for index in range(samples):
        for turn in range(len(order)):
            key = order[(index + turn) % len(order)]
            times[key].append(elapsed(graphs[key]))
    empty = times.pop(None, [0.0] * samples)
    return {
        config: [max(t - f, 0.01) / protocol.unroll for t, f in zip(found, empty, strict=True)]
        for config, found in times.items()
        if config is not None
    }


def floor_us(problem: Problem, protocol: Protocol, samples: int) -> list[float]:
    """Microseconds of a streaming read of as many bytes as the weight has, under the same protocol: the fastest of a
    few kernels that do nothing else."""
    words = max(problem.n * problem.k * to_torch(problem.b.dtype).itemsize // 4, 1)
    names = {"data": torch.ones(words, dtype=torch.int32, device="cuda"), "sink": sink_buffer()}
    empty = capture(None, protocol)
    found = []
    for shape in elementwise.READS:
        graph = capture(_alone(launcher(elementwise.read(words, shape), names, {"elements": words})), protocol)
        elapsed(graph), elapsed(empty)
        times = [max(elapsed(graph) - elapsed(empty), 0.01) / protocol.unroll for _ in range(samples)]
        found.append((statistics.median(times), times))
    return min(found)[1]


def _alone(step: Callable[[], None]) -> Call:
    return lambda _: step()


def _load(problem: Problem, config: Config, protocol: Protocol) -> Loaded:
    bench = _setup(problem)
    if config not in bench.calls:
        call, compile_s = bind(problem, config, bench.copies)
        error = _check(bench, call)
        known = bench.loaded.get(ATEN)
        if not acceptable(problem, error, known.error if known and known.error is not None else error):
            return Loaded(Status.WRONG, error, compile_s)
        bench.calls[config], bench.loaded[config] = call, Loaded(Status.OK, error, compile_s)
    graphs = bench.graphs.setdefault(protocol.text, {})
    if protocol.l2 == "cold" and None not in graphs:
        graphs[None] = capture(None, protocol)
    if config not in graphs:
        graphs[config] = capture(bench.calls[config], protocol, len(bench.copies))
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
        found = {"A": made.a, "B": made.b, "bias": made.bias, "scale": made.scale}
        tensors = {name: tensor for name, tensor in found.items() if tensor is not None}
        tensors["out"] = torch.empty(problem.m, problem.n, dtype=to_torch(problem.out), device=device)
        count = COPIED_BYTES // max(sum(tensor.nbytes for tensor in tensors.values()), 1)
        copies = [tensors, *({n: _moved(t) for n, t in tensors.items()} for _ in range(min(count, COPIES) - 1))]
        _bench = Bench(problem, copies, expected)
    return _bench


def _moved(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with the same strides and alignment at another address."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.storage_offset()
    storage = torch.empty(start + extent, dtype=tensor.dtype, device=tensor.device)
    return storage.as_strided(tensor.shape, tensor.stride(), start).copy_(tensor)


def _check(bench: Bench, call: Call) -> float:
    """The error of runs into poisoned memory, on the first and the last operands; the first is run twice, since a run
    may leave scratch behind."""
    last = len(bench.copies) - 1
    for index in (0, 0, last):
        out = bench.copies[index]["out"]
        out.fill_(float("nan") if out.is_floating_point() else torch.iinfo(out.dtype).min)
        call(index)
    torch.cuda.synchronize()
    return max(bench.expected.error(bench.copies[index]["out"]) for index in {0, last})


def _alive() -> bool:
    try:
        torch.cuda.synchronize()
    except Exception:
        return False
    return True
