"""The work of `peers`: compile one problem in several modes in this process, check the results, time them in turn."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import gemmdb.inductor
from benchmarks.compiling import Call, compiled
from benchmarks.h200.strata import SHARES
from benchmarks.interleaved import quartiles, timed
from gemmdb.generators.measure.cuda import elementwise
from gemmdb.generators.measure.cuda.backend import UNROLL, VERSION
from gemmdb.generators.measure.cuda.bench import Bench, alive, capture, elapsed, sink_buffer
from gemmdb.generators.measure.cuda.calls import launcher
from gemmdb.generators.measure.operands import Operands
from gemmdb.generators.measure.program import Product
from gemmdb.generators.measure.tolerance import tolerance
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Protocol, one_line

LARGEST_PACKED = 120e6
"""The most elements of a weight for which the kernel of the weight-only pattern is timed: it takes milliseconds."""

READS = ((4096, 8, 8), (1024, 4, 4), (2048, 4, 4), (4096, 2, 8), (512, 8, 1))
"""(Elements per step, steps, warps) of reading kernels."""


class Linear(torch.nn.Module):
    """A weight-only GEMM as models write it: `linear(x, w.to(x.dtype)) * s` of an activation with a batch."""

    def __init__(self, made: Operands) -> None:
        super().__init__()
        self.inputs = (made.a.unsqueeze(0), made.b.t(), made.scale)

    def forward(self, x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """The GEMM [1, m, n] of [1, m, k] and a stored [n, k] weight."""
        return torch.nn.functional.linear(x, weight.to(x.dtype)) * scale


def measure(problem: Problem, table: Path, samples: int) -> dict[str, Any]:
    """The result of each mode, JSON-ready. A mode that fails has a reason and no times. `fatal`: this process cannot
    measure any more."""
    torch._dynamo.reset()
    try:
        return _measure(problem, table, samples)
    except Exception as error:
        return {"failure": one_line(f"{type(error).__name__}: {error}"), "fatal": not alive()}


def _measure(problem: Problem, table: Path, samples: int) -> dict[str, Any]:
    bench = Bench.of(problem)
    sets = [Operands.of(copy) for copy in bench.copies]
    found: dict[str, Any] = {"tolerance": tolerance(problem), "ways": {}, "us": {}}
    calls: dict[str, Call] = {}
    for name, (module, how) in ways(problem, table).items():
        gemmdb.inductor.reset_stats()
        call, facts = compiled((module, how), sets, problem, bench.expected[0])
        found["ways"][name] = facts
        if call is not None:
            calls[name] = call
        if name == "gemmdb":
            stats = gemmdb.inductor.stats()
            found["product"] = stats["products"][0] if stats["products"] else None
            found["benchmarked"] = stats["benchmarked"]
    protocol = Protocol("graph", "cold", UNROLL, samples, version=VERSION)
    found["us"] = timed(calls, len(sets), protocol)
    if any(member(problem) for member, _ in SHARES.values()):
        found["us"]["floor"] = quartiles(floor_us(problem, protocol, samples))
    return found


def floor_us(problem: Problem, protocol: Protocol, samples: int) -> list[float]:
    """Microseconds of a streaming read of as many bytes as the weight has, under the same protocol: the fastest of a
    few kernels that do nothing else."""
    words = max(problem.weight_bytes // 4, 1)
    names = {"data": torch.ones(words, dtype=torch.int32, device="cuda"), "sink": sink_buffer()}
    empty = capture(None, protocol)
    found = []
    for shape in READS:
        run = launcher(elementwise.read(words, *shape), names, {"elements": words})
        graph = capture(partial(_ignoring_operands, run), protocol)
        elapsed(graph), elapsed(empty)
        times = [max(elapsed(graph) - elapsed(empty), 0.01) / protocol.unroll for _ in range(samples)]
        found.append((statistics.median(times), times))
    return min(found)[1]


def ways(problem: Problem, table: Path) -> dict[str, tuple[Callable[[Operands], Any], dict[str, Any]]]:
    """How each mode makes the module of operands, and its arguments of `torch.compile`."""
    strict = {"gemmdb.on_miss": "error", "gemmdb.tables": [table]}
    product = lambda made: Product(problem, made)  # noqa: E731
    found: dict[str, tuple[Callable[[Operands], Any], dict[str, Any]]] = {
        "default": (product, {}),
        "autotune": (product, {"mode": "max-autotune-no-cudagraphs"}),
        "gemmdb": (product, {"backend": "gemmdb", "options": strict}),
    }
    usual = problem.op == "mixed_mm" and problem.a.dtype == "bf16" and problem.b.dtype == "int8"
    usual = usual and problem.fusion == "scale" and problem.b.layout.order == "col" and problem.bias is None
    if usual and problem.m <= 16 and problem.n * problem.k <= LARGEST_PACKED:
        found["linear"] = (Linear, {})
    return found


def _ignoring_operands(run: Callable[[], None], _: object) -> None:
    """A call for `capture` of a launch that is bound to its tensors already."""
    run()
