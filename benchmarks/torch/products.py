"""The work of `lowering`: compile one GEMM with a table and in default mode, check both, and time what comes out."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import gemmdb.inductor
from benchmarks.interleaved import timed
from gemmdb import Config, Problem, Protocol
from gemmdb.generators.measure.correctness import reference
from gemmdb.generators.measure.cuda.calls import aten, ours
from gemmdb.generators.measure.cuda.render import plan
from gemmdb.generators.measure.operands import operands
from gemmdb.generators.measure.program import Product, as_product
from gemmdb.generators.measure.tolerance import tolerance

COPIED_BYTES = 2**30
"""The most bytes of all copies of the operands."""


def compiled(problem: Problem, made: Any, **how: Any) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The compiled GEMM, and the facts of its first call."""
    from torch._inductor.utils import run_and_get_code

    gemmdb.inductor.reset_stats()
    product = Product(problem, made)
    run = torch.compile(product, **how)
    start = time.perf_counter()
    result, codes = run_and_get_code(run, *product.inputs)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    first = result[0] if isinstance(result, tuple) else result  # With an epilogue that keeps the product.
    error = reference(problem, made).error(as_product(problem, first))
    del result
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run(*product.inputs)
    stats = gemmdb.inductor.stats()
    body = codes[0].partition("async_compile.wait")[2]
    return run, {
        "fresh_s": seconds, "error": error, "tolerance": tolerance(problem),
        "memory_bytes": torch.cuda.max_memory_allocated() - before, "benchmarked": stats["benchmarked"],
        "products": stats["products"], "errors": stats["errors"],
        "launches": body.count(".run("), "extern": body.count("extern_kernels."), "code": codes[0],
    }  # fmt: skip


def on_copies(run: Callable[..., Any], inputs: list[tuple[torch.Tensor, ...]]) -> Callable[[int], None]:
    """The compiled GEMM as a call on the operands of a number."""

    def call(index: int) -> None:
        run(*inputs[index])

    return call


def measure(problem: Problem, table: Path, samples: int) -> dict[str, Any]:
    """The facts and times of one problem."""
    torch._dynamo.reset()
    cuda = torch.device("cuda")
    made = operands(problem, cuda, 1)
    strict = {"gemmdb.on_miss": "error", "gemmdb.tables": [table]}
    ours_run, ours_facts = compiled(problem, made, backend="gemmdb", options=strict)
    default_run, default_facts = compiled(problem, made)
    del default_facts["code"], default_facts["products"]
    found: dict[str, Any] = {"problem": problem.text, "gemmdb": ours_facts, "default": default_facts}
    count = max(1, min(10, COPIED_BYTES // problem.bytes))
    sets = [made, *(operands(problem, cuda, 2 + index) for index in range(count - 1))]
    inputs = [Product(problem, one).inputs for one in sets]
    tensors = [_tensors(problem, one) for one in sets]
    calls = {
        "gemmdb": on_copies(ours_run, inputs),
        "default": on_copies(default_run, inputs),
        "reference": aten(problem, tensors)[0],
    }
    config = Config.parse(ours_facts["products"][0]["config"])
    if config.backend == "triton":
        calls["kernel"] = ours(problem, tensors, plan(problem, config))[0]
    found["us"] = timed(calls, count, Protocol("graph", "cold", 10, samples, version=2))
    return found


def _tensors(problem: Problem, made: Any) -> dict[str, torch.Tensor]:
    dtype = {"bf16": torch.bfloat16, "int32": torch.int32}[problem.out]
    out = torch.empty(problem.m, problem.n, dtype=dtype, device="cuda")
    named = {"A": made.a, "B": made.b, "bias": made.bias, "scale": made.scale, "out": out}
    return {name: tensor for name, tensor in named.items() if tensor is not None}
