"""What runs in the isolated process of a CPU: compile a candidate as Inductor emits it, check its result, time it on
the host clock.

The process keeps one problem with its compiled candidates at a time. Only the call of the generated code is timed,
without guards and autograd wrappers. The reference is compiled and called in the same way.
"""

from __future__ import annotations

import functools
import gc
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

import torch

from gemmdb.generators.measure import representative
from gemmdb.generators.measure.cpu.compiled import Compiled, compile_candidate
from gemmdb.generators.measure.program import FP32_MODES, Product, operands
from gemmdb.generators.measure.reference import Reference, poison, reference
from gemmdb.inductor.benchmark.host import Sampler
from gemmdb.inductor.lower.adapter import vector_units
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Protocol

CPU = torch.device("cpu")
TIMED_SEED, CHECKED_SEED = 1, 2


@dataclass
class Bench:
    """A problem set up for measuring: its program, the inputs for the check, and the loaded candidates."""

    problem: Problem
    product: Product
    fresh: tuple[torch.Tensor, ...]
    expected: Reference
    loaded: dict[Config, Compiled] = field(default_factory=dict)


_bench: Bench | None = None


def compile_only(problem: Problem, config: Config, threads: int) -> float:
    """Compile one candidate, so that a later `load` in another process finds it in the compiler's cache. Returns the
    seconds it took. Raises whatever the compiler raises."""
    _configure(problem, threads)
    start = perf_counter()
    compile_candidate(problem, Product(problem, operands(problem, CPU, TIMED_SEED)), config)
    return perf_counter() - start


def load(problem: Problem, config: Config, threads: int) -> float:
    """Compile a candidate, run it once on fresh inputs into poisoned memory, and keep it. Returns its error."""
    bench = _setup(problem, threads)
    compiled = compile_candidate(problem, bench.product, config)
    poison(problem, CPU)
    error = bench.expected.error(representative.as_product(problem, compiled(bench.fresh)))
    bench.loaded[config] = compiled
    return error


def usable() -> bool:
    """Whether further processes can trust the vector units, since this process has tried them."""
    return vector_units.all_usable()


def trust() -> None:
    """Trust the vector units in this process."""
    vector_units.trust()


def time_round(
    problem: Problem, configs: Sequence[Config], protocol: Protocol, samples: int, budget_s: float
) -> dict[Config, list[float]]:
    """Microseconds of each call, `samples` per config or as many (at least 3) as fit into `budget_s`; one call of each
    config, ATen among them, per round, starting with another one each time. Candidates not asked for are unloaded."""
    if _bench is None or _bench.problem != problem:
        raise RuntimeError("the candidates of this problem are not loaded")
    order = [ATEN, *(config for config in configs if config != ATEN)]
    # Each candidate holds its own packed copy of the weight.
    _bench.loaded = {config: _bench.loaded[config] for config in order}
    runs = [_bench.loaded[config] for config in order]
    inputs = _bench.product.inputs
    sampler = Sampler.of(protocol.l2, samples * len(order))
    for run in runs:
        run(inputs)
    times: dict[Config, list[float]] = {config: [] for config in order}
    until = perf_counter() + budget_s
    gc.collect()
    gc.disable()
    try:
        for index in range(samples):
            if index >= 3 and perf_counter() > until:
                break
            for turn in range(len(runs)):
                chosen = (index + turn) % len(runs)
                samples_us = times[order[chosen]]
                samples_us.append(_sample(sampler, runs[chosen], inputs, samples_us, protocol.l2))
    finally:
        gc.enable()
    return times


def _sample(
    sampler: Sampler, run: Compiled, inputs: tuple[torch.Tensor, ...], known_us: Sequence[float], state: str
) -> float:
    # Another candidate ran last, so with a hot cache a call brings the operands back into it.
    touch = functools.partial(run, inputs) if state == "hot" else None
    return sampler.time(run.function, run.arguments(inputs), min(known_us, default=math.inf), touch)


def _setup(problem: Problem, threads: int) -> Bench:
    global _bench
    if _bench is None or _bench.problem != problem:
        _bench = None
        _configure(problem, threads)
        timed = operands(problem, CPU, TIMED_SEED)
        product = Product(problem, timed)
        other = operands(problem, CPU, CHECKED_SEED)
        checked = other if not problem.constant else replace(timed, a=other.a, scale_a=other.scale_a)
        _bench = Bench(problem, product, Product(problem, checked).inputs, reference(problem, checked))
    return _bench


def _configure(problem: Problem, threads: int) -> None:
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(FP32_MODES[problem.numerics.fp32])
    torch.use_deterministic_algorithms(problem.numerics.deterministic)
    if math.prod(problem.shapes[2]) > 2**40:
        raise MemoryError(f"an output of {' x '.join(map(str, problem.shapes[2]))} does not fit")
