"""Compile products with a table and time what comes out, beside Inductor's default and the kernel by itself.

    python benchmarks/lowering.py --table TABLE.db --out RESULT.json [--samples 25] [--seconds 150]

Each product is compiled in strict mode (`on_miss="error"`) and in default mode, checked against float64, and timed by
the protocol of the tables: CUDA graphs of ten calls with a cold L2, on rotating operands, interleaved. `kernel` is the
table's config rendered by the generator, `reference` what its ratios are relative to. Memory is what one call takes
beside its operands, `fresh_s` the first call's time with an empty cache.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.mkdtemp(prefix="inductor-"))

import torch

import gemmdb.inductor
from gemmdb import Config, Problem, Protocol
from gemmdb.devices import detect
from gemmdb.generators.measure.cuda.calls import aten, ours
from gemmdb.generators.measure.cuda.graphs import capture, elapsed
from gemmdb.generators.measure.cuda.render import plan
from gemmdb.generators.measure.program import Product, operands
from gemmdb.generators.measure.reference import reference
from gemmdb.generators.measure.tolerance import tolerance
from gemmdb.key.toolchain import installed

PROTOCOL = Protocol("graph", "cold", 10, 25, version=2)
COPIED_BYTES = 2**30
gemm = Problem.gemm
PROBLEMS = (
    gemm("mixed_mm", m=8, n=28672, k=8192, fusion="scale"),
    gemm("int_mm", m=64, n=14336, k=4096, fusion="scale"),
    gemm("mm", m=16, n=4096, k=4096),
    gemm("mixed_mm", m=1, n=28672, k=8192, fusion="scale"),
    gemm("mixed_mm", m=16, n=4096, k=4096, fusion="scale"),
    gemm("int_mm", m=32, n=4096, k=4096),
    gemm("mm", m=1, n=4096, k=4096),
)

Graphs = dict[str, torch.cuda.CUDAGraph]


def compiled(problem: Problem, made: Any, **how: Any) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The compiled product, and what is known of it after its first call."""
    from torch._inductor.utils import run_and_get_code

    gemmdb.inductor.reset_stats()
    product = Product(problem, made)
    run = torch.compile(product, **how)
    start = time.perf_counter()
    result, codes = run_and_get_code(run, *product.inputs)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    error = reference(problem, made).error(result)
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
    """The compiled product as a call on the operands of a number."""

    def call(index: int) -> None:
        run(*inputs[index])

    return call


def measure(problem: Problem, table: Path, samples: int) -> dict[str, Any]:
    """Everything about one problem."""
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
    found["us"] = timed(calls, count, samples)
    return found


def _tensors(problem: Problem, made: Any) -> dict[str, torch.Tensor]:
    dtype = {"bf16": torch.bfloat16, "int32": torch.int32}[problem.out]
    out = torch.empty(problem.m, problem.n, dtype=dtype, device="cuda")
    named = {"A": made.a, "B": made.b, "bias": made.bias, "scale": made.scale, "out": out}
    return {name: tensor for name, tensor in named.items() if tensor is not None}


def timed(calls: dict[str, Callable[[int], None]], copies: int, samples: int) -> dict[str, list[float]]:
    """Quartiles of the microseconds of one call, by name."""
    graphs: Graphs = {name: capture(call, PROTOCOL, copies) for name, call in calls.items()}
    graphs[""] = capture(None, PROTOCOL)
    names = list(graphs)
    times: dict[str, list[float]] = {name: [] for name in names}
    for index in range(samples + 1):
        for turn in range(len(names)):
            name = names[(index + turn) % len(names)]
            times[name].append(elapsed(graphs[name]))
    empty = times.pop("")
    return {
        name: statistics.quantiles([(t - f) / PROTOCOL.unroll for t, f in zip(found, empty, strict=True)][1:], n=4)
        for name, found in times.items()
    }


def smi() -> str:
    """Name, driver, clocks and power limit of the GPU, as nvidia-smi prints them."""
    query = "--query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit"
    return subprocess.run(["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True).stdout.strip()


def main() -> None:
    """Measure the problems in order until the time is up, and write after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=150)
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    device, toolchain = detect.cuda(), installed("cuda")
    header = {"date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "gpu": smi(),
              "device": device and device.text, "toolchain": toolchain and toolchain.text}  # fmt: skip
    results: list[dict[str, Any]] = []
    for problem in PROBLEMS:
        if time.monotonic() > until:
            break
        try:
            results.append(measure(problem, options.table, options.samples))
        except Exception as error:
            results.append({"problem": problem.text, "failure": f"{type(error).__name__}: {error}"[:4000]})
        options.out.write_text(json.dumps({**header, "results": results}, indent=1))
        last = results[-1]
        print(problem.text[:60], last.get("us"), last.get("failure"), flush=True)


if __name__ == "__main__":
    main()
