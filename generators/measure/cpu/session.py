"""Functions for the isolated CPU process: compile a candidate as Inductor emits it, check its result, time it on the
host clock.

The process keeps one problem with its compiled candidates at a time. Only the call of the generated code is timed,
without guards and autograd wrappers; the same holds for the reference.
"""

from __future__ import annotations

import functools
import gc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import torch
import torch._functorch.config as functorch_config
import torch._inductor.compile_fx as inductor
import torch._inductor.config as inductor_config
import torch.fx.experimental._config as symbolic_shapes_config

from gemmdb.errors import GemmdbError
from gemmdb.generators.measure.correctness import Reference, poison, reference
from gemmdb.generators.measure.operands import operands
from gemmdb.generators.measure.program import Product, as_product, check_lowered, set_numerics
from gemmdb.inductor import force
from gemmdb.inductor.benchmark.timers import Sampler
from gemmdb.inductor.observe.journal import JOURNAL
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Protocol
from gemmdb.table.stats import turns

CPU = torch.device("cpu")
TIMED_SEED, CHECKED_SEED = 1, 2


@dataclass(frozen=True)
class Compiled:
    """`function` takes the list of the graph's arguments and empties it; `order` maps its positions to the inputs, and
    to None for `rows`, the problem's M, which is an argument where it is symbolic."""

    function: Callable[[list[Any]], Sequence[torch.Tensor]]
    order: tuple[int | None, ...]
    rows: int

    def arguments(self, inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor | int]:
        """Return the list to call `function` with."""
        return [self.rows if position is None else inputs[position] for position in self.order]

    def __call__(self, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return the result for these inputs."""
        return self.function(self.arguments(inputs))[0]


@dataclass
class Bench:
    """A problem set up for measuring: its program, inputs for the check, and loaded candidates."""

    problem: Problem
    product: Product
    fresh: tuple[torch.Tensor, ...]
    expected: Reference
    loaded: dict[Config, Compiled] = field(default_factory=dict)


_bench: Bench | None = None


def compile_only(problem: Problem, config: Config, threads: int) -> float:
    """Compile one candidate, so that a later `load` in another process finds it in the compiler's cache. Returns the
    seconds. Raises whatever the compiler raises."""
    _configure(problem, threads)
    start = perf_counter()
    compile_candidate(problem, Product(problem, operands(problem, CPU, TIMED_SEED)), config)
    return perf_counter() - start


def load(problem: Problem, config: Config, threads: int) -> float:
    """Compile a candidate, run it once on fresh inputs into poisoned memory, and keep it. Returns its error."""
    bench = _setup(problem, threads)
    compiled = compile_candidate(problem, bench.product, config)
    poison(problem, CPU)
    error = bench.expected.error(as_product(problem, compiled(bench.fresh)))
    bench.loaded[config] = compiled
    return error


def time_round(
    problem: Problem, configs: Sequence[Config], protocol: Protocol, samples: int, budget_s: float
) -> dict[Config, list[float]]:
    """Return the microseconds of each call, `samples` per config or as many (at least 3) as fit into `budget_s`. Each
    round has one call of each config, including ATen, starting with a different one each time. Other candidates are
    unloaded."""
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
            for chosen in turns(range(len(runs)), index):
                run, us = runs[chosen], times[order[chosen]]
                # Another candidate ran last, so with a hot cache an extra call reloads the operands.
                touch = functools.partial(run, inputs) if protocol.l2 == "hot" else None
                us.append(sampler.time(run.function, run.arguments(inputs), min(us, default=math.inf), touch))
    finally:
        gc.enable()
    return times


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
    set_numerics(problem)
    if math.prod(problem.shapes[2]) > 2**40:
        raise MemoryError(f"an output of {' x '.join(map(str, problem.shapes[2]))} does not fit")


def compile_candidate(problem: Problem, product: Product, config: Config) -> Compiled:
    """Compile the program with `config` as `torch.compile` would, with freezing if the weight is constant; for
    `aten:symbolic_rows`, with ATen and a symbolic M.

    Raises GemmdbError if Inductor saw another problem or did not take this config, and whatever Inductor raises.
    """
    is_symbolic = config.spec.measured_only
    config = ATEN if is_symbolic else config
    graphs: list[tuple[Any, list[Any]]] = []
    torch._dynamo.reset()
    JOURNAL.clear()
    # A cached graph would hide the compiled code. The C++ code cache is keyed by source and stays on.
    patches = {"freezing": problem.constant, "fx_graph_cache": False}

    def compile_graph(graph: Any, inputs: Any, **options: Any) -> Any:
        """Compile as Inductor's innermost step does, and record the code and its arguments at each call."""
        code = inductor.compile_fx_inner(graph, inputs, **options)

        def run(arguments: list[Any]) -> Any:
            graphs.append((code, list(arguments)))
            return code(arguments)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def backend(graph: Any, inputs: Any) -> Any:
        return inductor.compile_fx(graph, inputs, inner_compile=compile_graph)

    with (
        torch.no_grad(),
        inductor_config.patch(patches),
        functorch_config.patch(enable_autograd_cache=False),
        # With duck shapes, a K or N that is equal to M would fix M.
        symbolic_shapes_config.patch(use_duck_shape=False),
        force(config),
    ):
        torch.compile(product, backend=backend, dynamic=is_symbolic, fullgraph=True)(*product.inputs)
    if len(graphs) != 1:
        raise GemmdbError(f"compiled to {len(graphs)} graphs, not one")
    if JOURNAL.errors:
        raise GemmdbError(f"the lowering failed: {JOURNAL.errors[0]}")
    check_lowered(problem, config, JOURNAL.events)
    if is_symbolic and set(JOURNAL.events[0].ranges) != {"m"}:
        raise GemmdbError(f"the symbolic sizes are {', '.join(JOURNAL.events[0].ranges) or 'none'}, not m")
    code, arguments = graphs[0]
    order = tuple(_position(argument, problem.m, product.inputs) for argument in arguments)
    return Compiled(code.current_callable, order, problem.m)


def _position(argument: Any, rows: int, inputs: tuple[torch.Tensor, ...]) -> int | None:
    if isinstance(argument, int) and argument == rows:
        return None
    for position, known in enumerate(inputs if isinstance(argument, torch.Tensor) else ()):
        if known is argument or (known.data_ptr() == argument.data_ptr() and known.shape == argument.shape):
            return position
    raise GemmdbError("the graph takes an argument that is no input of the program")
