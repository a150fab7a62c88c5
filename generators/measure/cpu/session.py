"""What runs in the isolated process of a CPU: compile a candidate as Inductor emits it, check its result, time it on
the host clock.

The process keeps one problem with its compiled candidates at a time. Only the call of the generated code is timed,
without guards and autograd wrappers. The reference is compiled and called in the same way.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from resource import RUSAGE_SELF, getrusage
from time import perf_counter, perf_counter_ns
from typing import Any

import torch

from gemmdb.devices.detect import last_level_cache_bytes
from gemmdb.generators.measure import representative
from gemmdb.generators.measure.cpu.compiled import Compiled, compile_candidate
from gemmdb.generators.measure.program import FP32_MODES, Product, operands
from gemmdb.generators.measure.reference import Reference, poison, reference
from gemmdb.inductor.adapter import vector_units
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Protocol

CPU = torch.device("cpu")
TIMED_SEED, CHECKED_SEED = 1, 2
TRIES = 8
"""The most tries per sample until one is undisturbed; in a whole round, at most two per sample on average."""
SETTLE = 10
"""The most small parallel regions that are run until all threads have their cores."""
STALL_US = 1000.0
"""A call that takes three times as long as the quickest one, and this much longer, has waited for a core. Time slices
of the operating system are milliseconds; the noise of caches and clocks is far smaller."""


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


def trusted() -> Mapping[str, str]:
    """Environment variables about the vector units for further processes, since this process has tested the units."""
    return vector_units.TRUSTED if vector_units.all_usable() else {}


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
    sampler = _Sampler.of(protocol.l2, samples * len(order))
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
                samples_us.append(sampler.time(runs[chosen], inputs, min(samples_us, default=math.inf)))
    finally:
        gc.enable()
    return times


@dataclass
class _Sampler:
    """Times single calls. `evict` reads a buffer of twice the last-level cache; None keeps the caches hot. `patience`:
    how many disturbed samples may still be taken again."""

    evict: Callable[[], Any] | None
    settle: Callable[[], None]
    patience: int

    @classmethod
    def of(cls, state: str, patience: int) -> _Sampler:
        """The sampler of a cache state, `cold` or `hot`."""
        buffer = torch.ones(2 * last_level_cache_bytes() // 8, dtype=torch.int64) if state == "cold" else None
        return cls(None if buffer is None else lambda: buffer.sum(), _settler(), patience)

    def time(self, run: Compiled, inputs: tuple[torch.Tensor, ...], best_us: float) -> float:
        """Microseconds of one call, undisturbed by other processes if a few tries suffice. `best_us`: the quickest call
        so far."""
        for _ in range(TRIES):
            if self.evict is not None:
                self.evict()
            self.settle()
            if self.evict is None:
                # Another candidate ran last, so this call brings the operands back into the caches.
                run(inputs)
            arguments = run.arguments(inputs)
            switches = getrusage(RUSAGE_SELF).ru_nivcsw
            start = perf_counter_ns()
            result = run.function(arguments)
            elapsed = (perf_counter_ns() - start) / 1e3
            undisturbed = getrusage(RUSAGE_SELF).ru_nivcsw == switches
            del result
            if self.patience == 0 or (undisturbed and elapsed <= max(3 * best_us, best_us + STALL_US)):
                break
            self.patience -= 1
        return elapsed


def _settler() -> Callable[[], None]:
    """A function that returns when all of torch's threads have a core. After a process switch, a thread may wait
    milliseconds for its core, and the next parallel region would be charged for it."""
    little = torch.zeros(65536)

    def region() -> float:
        start = perf_counter()
        little.neg_()
        return perf_counter() - start

    usual = sorted(region() for _ in range(20))[5]

    def settle() -> None:
        for _ in range(SETTLE):
            if region() < 3 * usual:
                return

    return settle


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
