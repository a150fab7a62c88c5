"""What a measuring process of `measure` does with one problem: compile, check, time. Imports torch."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.compiling import Call
from benchmarks.dense.ways import Compiled, compile_all, host_times, ways
from benchmarks.interleaved import rounds
from gemmdb.cublaslt import library
from gemmdb.cublaslt.library import Algorithm
from gemmdb.cublaslt.matmul import MAX_WORKSPACE, Matmul, attributes
from gemmdb.cublaslt.shape import shape_of
from gemmdb.generators.measure.cuda.backend import UNROLL, VERSION
from gemmdb.generators.measure.cuda.bench import Bench, alive
from gemmdb.generators.measure.operands import Operands
from gemmdb.generators.measure.program import SPELLINGS, Product
from gemmdb.generators.measure.tolerance import tolerance
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Protocol, one_line

HEURISTICS = 32
"""How many algorithms cuBLASLt is asked for; it returns eight."""
SHORTLIST_SAMPLES = 5
"""Samples of each heuristic before the fastest is timed in turn with the others."""
DIGITS = 4
"""Digits of a microsecond that a result keeps."""
GRAPH_US, FLOPS_PER_US = 3000.0, 6e8
"""A graph has fewer calls if all take longer, by the speed of a GEMM in bf16 on an H100."""


def prepare() -> None:
    """Compile something in both ways, so that the first problem does not pay what every process pays once."""
    module = Product(tiny := Problem.gemm("mm", m=24, n=48, k=40), Operands.of(Bench.of(tiny).copies[0]))
    for how in ways(None).values():
        torch.compile(module, **how)(*module.inputs)


def measure(problem: Problem, built: Path | None, samples: int, folder: Path) -> dict[str, Any]:
    """The result of a problem, JSON-ready. A way that fails has a reason and no times. `folder`: a new one, for user
    tables. `fatal`: this process cannot measure any more."""
    try:
        bench = Bench.of(problem)
        sets = [Operands.of(copy) for copy in bench.copies]
        # What one way leaves in the memory of Inductor helps the next.
        reverse = problem.key % 2 == 1
        calls, facts = compile_all(problem, sets, bench.expected[0], ways(built), reverse, folder)
        found = {"tolerance": tolerance(problem), "ways": facts, "host": host_times(calls)}
        return {**found, **graph_times(problem, bench, calls, samples)}
    except Exception as error:
        return {"failure": one_line(f"{type(error).__name__}: {error}"), "fatal": not alive()}


def graph_times(problem: Problem, bench: Bench, calls: Compiled, samples: int) -> dict[str, Any]:
    """Microseconds in CUDA graphs with cold weights, in each round: `taken`, by way, with `aten` for torch's own
    function and `heuristic` for the fastest of cuBLASLt's heuristics; and `heuristics`, all of them."""
    spelled, unroll = SPELLINGS[problem.op], unrolled(problem)

    def aten(index: int) -> None:
        named = bench.copies[index]
        spelled(problem, named["A"], named["B"], [], named.get("bias"), out=named["out"])

    candidates, reason = heuristics(problem, bench)
    protocol = Protocol("graph", "cold", unroll, SHORTLIST_SAMPLES, version=VERSION)
    short = rounds({str(place): call for place, (_, call) in enumerate(candidates)}, len(bench.copies), protocol)
    us = [statistics.median(short[str(place)]) for place in range(len(candidates))]
    timed: Compiled = {**calls, "aten": aten}
    if us:
        timed["heuristic"] = candidates[us.index(min(us))][1]
    taken = rounds(timed, len(bench.copies), Protocol("graph", "cold", unroll, samples, version=VERSION))
    taken = {name: [round(one, DIGITS) for one in times] for name, times in taken.items()}
    listed = [{"attributes": attributes(algorithm), "us": us[place]} for place, (algorithm, _) in enumerate(candidates)]
    return {"taken": taken, "heuristics": listed, "unroll": unroll, **({"no_heuristics": reason} if reason else {})}


def heuristics(problem: Problem, bench: Bench) -> tuple[list[tuple[Algorithm, Call]], str]:
    """cuBLASLt's heuristics in its order, each with a call, and why there are none. One that fails or is wrong is left
    out."""
    if library.loaded() is None:
        return [], "torch has loaded no cuBLASLt"
    named = bench.copies[0]
    leading = [tensor.stride(0 if tensor.stride(1) == 1 else 1) for tensor in (named["A"], named["B"])]
    try:
        matmul = Matmul(shape_of(problem, *leading), torch.cuda.current_device())
        found = matmul.heuristics(HEURISTICS, MAX_WORKSPACE)
    except library.Error as error:
        return [], one_line(str(error))
    workspace = torch.empty(MAX_WORKSPACE, dtype=torch.uint8, device="cuda")
    pairs = [(one.algorithm, partial(run, matmul, one.algorithm, workspace, bench.copies)) for one in found]
    return [(algorithm, call) for algorithm, call in pairs if right(problem, bench, call)], ""


def right(problem: Problem, bench: Bench, call: Call) -> bool:
    """Whether a call runs and gives the product."""
    try:
        return bench.error(call) <= tolerance(problem)
    except library.Error:
        return False


def run(
    matmul: Matmul, algorithm: Algorithm, workspace: torch.Tensor, copies: Sequence[dict[str, torch.Tensor]], index: int
) -> None:
    """Run an algorithm on a copy of the operands."""
    named = copies[index]
    a, b, out, *extras = (named[name].data_ptr() for name in ("A", "B", "out", *matmul.shape.extras))
    stream = torch.cuda.current_stream().cuda_stream
    matmul.run(algorithm, a, b, out, workspace.data_ptr(), MAX_WORKSPACE, stream, *extras)


def unrolled(problem: Problem) -> int:
    """How many calls a graph has: UNROLL, or fewer if they are long."""
    return max(min(int(GRAPH_US / (2 * problem.m * problem.n * problem.k / FLOPS_PER_US)), UNROLL), 1)
