"""Compile the module of a problem in one way, and check its result. Imports torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gemmdb.generators.measure.correctness import Reference
from gemmdb.generators.measure.operands import Operands
from gemmdb.generators.measure.program import as_product
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import one_line

Call = Callable[[int], None]
"""Runs a GEMM on the copy of its operands with that number."""


def compiled(
    way: tuple[Callable[[Operands], Any], dict[str, Any]],
    sets: Sequence[Operands],
    problem: Problem,
    expected: Reference,
) -> tuple[Call | None, dict[str, Any]]:
    """The compiled module as a call on a copy of the operands, None if it failed, and the facts of its compilation."""
    from torch._inductor.utils import run_and_get_code

    make, how = way
    module = make(sets[0])
    run = torch.compile(module, **how)
    start = time.perf_counter()
    try:
        result, codes = run_and_get_code(run, *module.inputs)
        settled()
    except Exception as error:
        settled()  # Raises if this process cannot use the GPU any more.
        return None, {"failure": one_line(f"{type(error).__name__}: {error}")}
    first = result[0] if isinstance(result, tuple) else result  # With an epilogue that keeps the product.
    body = "".join(code.partition("async_compile.wait")[2] for code in codes)
    seconds, product = time.perf_counter() - start, as_product(problem, first).reshape(expected.sizes)
    facts = {
        "seconds": seconds, "error": expected.error(product),
        "launches": body.count(".run("), "extern": body.count("extern_kernels."), "template": "triton_tem_" in body,
    }  # fmt: skip
    inputs = [module.inputs, *(make(made).inputs for made in sets[1:])]

    def call(index: int) -> None:
        run(*inputs[index])

    return call, facts


def settled() -> None:
    """Wait for the GPU, if this process uses one. Raises what its kernels raised."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
