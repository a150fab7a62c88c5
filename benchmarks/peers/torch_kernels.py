"""What torch's user can write without a table: cuBLAS, the cast before it, and tinygemm. Imports torch."""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import torch

from benchmarks.dense import worker
from benchmarks.interleaved import rounds
from benchmarks.peers.case import Case, Made, Unfit, each
from benchmarks.peers.packing import tinygemm_bytes
from gemmdb.generators.measure.cuda.backend import VERSION
from gemmdb.generators.measure.operands import Operands
from gemmdb.generators.measure.program import SPELLINGS
from gemmdb.inductor.match.ops import dequantised
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Protocol

INNER = 8
"""Inner tiles of K in tinygemm's layout."""


def cublas(case: Case) -> Made:
    """The best that a program can spell: torch's function; for integer weights, the cast (one fused kernel) and then
    cuBLAS."""
    problem, sets = case.program
    calls = [_cublas(problem, made) for made in sets]
    return Made(lambda index: calls[index](), lambda result, _: result[: case.problem.m])


def _cublas(problem: Problem, made: Operands) -> Any:
    if problem.op == "mixed_mm":
        own = problem.int4
        if own is not None:
            dtype = made.a.dtype
            dequantise = torch.compile(
                lambda packed, scale, zeros: dequantised(packed, scale, zeros, own, dtype), dynamic=False
            )
            return partial(_int4, dequantise, made)
        return partial(_int8, torch.compile(_cast, dynamic=False), made)
    spelled = SPELLINGS[problem.op]
    more = [one for one in (made.scale_a, made.scale_b, made.offsets) if one is not None]
    if problem.op == "int_mm":
        return partial(_scaled_int, torch.compile(_scale, dynamic=False), made)
    return partial(spelled, problem, made.a, made.b, more, made.bias)


def _cast(weight: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return weight.to(dtype) * scale


def _int8(cast: Any, made: Operands) -> torch.Tensor:
    return torch.mm(made.a, cast(made.b, made.scale, made.a.dtype))


def _int4(dequantise: Any, made: Operands) -> torch.Tensor:
    return torch.mm(made.a, dequantise(made.b, made.scale, made.zeros).t())


def _scale(product: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (product * scale).to(torch.bfloat16)


def _scaled_int(scale: Any, made: Operands) -> torch.Tensor:
    return scale(torch._int_mm(made.a, made.b), made.scale)


def tinygemm(case: Case) -> Made:
    """`aten._weight_int4pack_mm` in its own layout, with the same weight."""
    case.multiple(n=8, k=16 * INNER)
    calls = []
    for made, weight in zip(case.sets, case.weights(), strict=True):
        packed = torch.ops.aten._convert_weight_to_int4pack(tinygemm_bytes(weight).contiguous(), INNER)
        scales = torch.stack([weight.scale.t(), torch.zeros_like(weight.scale.t())], -1).contiguous()
        group = weight.codes.shape[1] // weight.scale.shape[1]
        calls.append(partial(torch.ops.aten._weight_int4pack_mm, made.a, packed, group, scales))
    return each(calls)


def cublaslt(case: Case) -> Made:
    """The fastest of cuBLASLt's heuristics, found by timing each."""
    bench, problem = case.bench, case.problem
    assert bench is not None
    found, reason = worker.heuristics(problem, bench)
    if not found:
        raise Unfit(reason or "no heuristic gives the product")
    protocol = Protocol("graph", "cold", worker.unrolled(problem), worker.SHORTLIST_SAMPLES, version=VERSION)
    times = rounds({str(place): call for place, (_, call) in enumerate(found)}, len(bench.copies), protocol)
    best = min(times, key=lambda name: statistics.median(times[name]))
    run = found[int(best)][1]

    def call(index: int) -> torch.Tensor:
        run(index)
        return bench.copies[index]["out"]

    return Made(call)
