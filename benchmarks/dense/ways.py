"""Compile one GEMM in default mode and with gemmdb, and time the calls on the host. Imports torch."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import gemmdb.inductor
from benchmarks.compiling import Call, compiled, settled
from gemmdb.generators.measure.correctness import Reference
from gemmdb.generators.measure.operands import Operands
from gemmdb.generators.measure.program import Product
from gemmdb.inductor.benchmark import tune
from gemmdb.inductor.benchmark.limits import BUDGET
from gemmdb.key.problem import Problem

HOST_CALLS, HOST_ROUNDS = 200, 7
"""Calls that follow each other in a sample of the host's time, and the samples."""
Compiled = dict[str, Call]
"""Calls on a copy of the operands, by way."""


def ways(built: Path | None) -> dict[str, dict[str, Any]]:
    """The arguments of torch.compile, by way. `built`: a table of these problems."""
    found: dict[str, dict[str, Any]] = {"default": {}, "gemmdb": {"backend": "gemmdb"}}
    if built is not None:
        found["built"] = {"backend": "gemmdb", "options": {"gemmdb.tables": [built]}}
    return found


def compile_all(
    problem: Problem, sets: Sequence[Operands], expected: Reference, wanted: dict[str, dict[str, Any]], reverse: bool,
    folder: Path,
) -> tuple[Compiled, dict[str, Any]]:  # fmt: skip
    """The compiled calls on the copies `sets`, and the facts of each way. Each way compiles as in a new process: with
    gemmdb's whole compile budget, and with no rows of other problems in the user's table."""
    torch._dynamo.reset()
    calls: Compiled = {}
    facts: dict[str, Any] = {}
    for name in reversed(wanted) if reverse else wanted:
        os.environ["GEMMDB_USER_TABLE"] = str(folder / f"{name}.db")
        BUDGET.clear()
        tune.forget_lateness()
        gemmdb.inductor.reset_stats()
        call, facts[name] = compiled((partial(Product, problem), wanted[name]), sets, problem, expected)
        if call is not None:
            calls[name] = call
        if "backend" in wanted[name]:
            facts[name] |= answer()
    return {name: calls[name] for name in wanted if name in calls}, facts


def answer() -> dict[str, Any]:
    """What gemmdb answered in the last compile."""
    stats = gemmdb.inductor.stats()
    product = stats["products"][0] if stats["products"] else {}
    found = {name: product.get(name) for name in ("rung", "config", "expected_us", "speedup_vs_aten", "note")}
    return {**found, "overhead_s": stats["seconds"], "errors": stats["errors"]}


def host_times(calls: Compiled) -> dict[str, dict[str, list[float]]]:
    """Microseconds of a call without a CUDA graph, of HOST_CALLS that follow each other, by way: `host`, until the last
    call has returned, and `wall`, until its kernel has ended. The ways take turns."""
    found: dict[str, dict[str, list[float]]] = {name: {"host": [], "wall": []} for name in calls}
    for index in range(HOST_ROUNDS + 1):
        for name in reversed(calls) if index % 2 else calls:
            call = calls[name]
            settled()
            start = time.perf_counter()
            for _ in range(HOST_CALLS):
                call(0)
            returned = time.perf_counter()
            settled()
            if index:  # The first round warms up.
                found[name]["host"].append((returned - start) * 1e6 / HOST_CALLS)
                found[name]["wall"].append((time.perf_counter() - start) * 1e6 / HOST_CALLS)
    return found
