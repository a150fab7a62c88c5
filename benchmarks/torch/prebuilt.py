"""Compile GEMMs whose answer is a CUTLASS kernel from the archive, without nvcc: seconds over default mode, errors.

    python -m benchmarks.torch prebuilt --out RESULT.json [--products 20] [--repeats 3] [--seed 1]

The GEMMs are a random sample of those of the shipped tables whose verdict is a CUTLASS kernel. Each is compiled with
empty caches, in default mode and with gemmdb in turn, in a process without nvcc on its path and without CUTLASS's
headers. The output is compared with a reference of higher precision.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.common import software
from gemmdb.key.problem import Problem, Query
from gemmdb.key.toolchain import installed
from gemmdb.lookup import answer
from gemmdb.lookup.environment import current_catalog
from gemmdb.settings import Policy

WAYS: tuple[tuple[str, dict[str, Any]], ...] = (("default", {}), ("gemmdb", {"backend": "gemmdb"}))


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the result")
    parser.add_argument("--products", type=int, default=20, help="default: 20")
    parser.add_argument("--repeats", type=int, default=3, help="compiles of each way; default: 3")
    parser.add_argument("--seed", type=int, default=1, help="of the sample; default: 1")


def main(options: argparse.Namespace) -> None:
    """Measure the GEMMs one by one, and write after each."""
    os.environ["PATH"] = os.pathsep.join(folder for folder in os.get_exec_path() if not Path(folder, "nvcc").exists())
    for name in ("CUDA_HOME", "CUDACXX"):
        os.environ.pop(name, None)
    from gemmdb.kernels import cutlass

    cutlass.headers = lambda: None  # The package may be installed here.
    warm()
    header = {**software(), "nvcc": cutlass.compiler()}
    results: list[dict[str, Any]] = []
    for problem in chosen(options.products, options.seed):
        try:
            results.append(measured(problem, options.repeats))
        except Exception as error:
            results.append({"problem": problem.text, "failure": f"{type(error).__name__}: {error}"[:2000]})
        options.out.write_text(json.dumps({**header, "results": results}, indent=1))
        print(json.dumps(results[-1]), flush=True)
    more = [one["more_s"] for one in results if "more_s" in one]
    if more:
        print(f"{len(more)} products: {statistics.median(more):.2f} s more in the median, {max(more):.2f} s at most")


def chosen(count: int, seed: int) -> list[Problem]:
    """A sample of the problems of the tables in use, for this device, that the default policy answers with CUTLASS."""
    catalog, toolchain = current_catalog(), installed("cuda")
    device = catalog.resolve(None)
    found = []
    for table in catalog.tables:
        for problem, where in table.decided():
            hit = answer(Query(problem, device), catalog, Policy(), toolchain) if where.key == device.key else None
            if hit is not None and hit.rung == "exact" and hit.config.backend == "cutlass":
                found.append(problem)
    return random.Random(seed).sample(found, min(count, len(found)))


def warm() -> None:
    """Pay for what every process pays once."""
    import torch

    for _, how in WAYS:
        torch.compile(lambda x, w: (x @ w).relu(), **how)(*(torch.ones(64, 64, device="cuda") for _ in "xw"))


def measured(problem: Problem, repeats: int) -> dict[str, Any]:
    """The row of one problem: seconds of the first call in each way, the config, the error and what is allowed."""
    import torch

    import gemmdb.inductor
    from gemmdb.generators.measure.correctness import reference
    from gemmdb.generators.measure.operands import operands
    from gemmdb.generators.measure.program import Product, set_numerics
    from gemmdb.generators.measure.tolerance import tolerance

    set_numerics(problem)
    made = operands(problem, torch.device("cuda"), 1)
    product = Product(problem, made)
    seconds: dict[str, list[float]] = {name: [] for name, _ in WAYS}
    for index in range(repeats):
        for name, how in WAYS if index % 2 else reversed(WAYS):
            gemmdb.inductor.reset_stats()
            taken, found = first_call(product, how)
            seconds[name].append(taken)
            if name == "gemmdb":
                answer, stats = found, gemmdb.inductor.stats()
    medians = {name: statistics.median(all_of) for name, all_of in seconds.items()}
    (entry,) = stats["products"]
    return {
        "problem": problem.text, "config": entry["config"], "note": entry["note"], "seconds": seconds,
        "more_s": medians["gemmdb"] - medians["default"], "error": reference(problem, made).error(answer),
        "tolerance": tolerance(problem),
    }  # fmt: skip


def first_call(product: Any, how: dict[str, Any]) -> tuple[float, Any]:
    """Seconds of the first call of a compiled GEMM with empty caches, and its output."""
    import torch
    from torch._inductor.utils import fresh_cache

    torch._dynamo.reset()
    with fresh_cache(), torch.no_grad():
        torch.cuda.synchronize()
        start = time.perf_counter()
        found = torch.compile(product, **how)(*product.inputs)
        torch.cuda.synchronize()
        return time.perf_counter() - start, found
