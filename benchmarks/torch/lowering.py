"""Compile GEMMs with a table and time what comes out, with Inductor's default and the kernel by itself.

    python -m benchmarks.torch lowering --table TABLE.db --out RESULT.json [--samples 25] [--seconds 150]

Each GEMM is compiled in strict mode (`on_miss="error"`) and in default mode, checked against float64, and timed by
the protocol of the tables: CUDA graphs of ten calls with a cold L2, on rotating operands, interleaved. `kernel` is the
table's config rendered by the generator, `reference` is ATen, to which its ratios are relative. Memory is what one call
takes besides its operands; `fresh_s` is the time of the first call with an empty cache.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import gpu_states, software
from gemmdb import Problem

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


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--table", type=Path, required=True, help="the table that answers")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the result")
    parser.add_argument("--samples", type=int, default=25, help="timed samples of each call")
    parser.add_argument("--seconds", type=float, default=150, help="begin no problem after that time")


def main(options: argparse.Namespace) -> None:
    """Measure the problems in order until the time is up, and write after each."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.mkdtemp(prefix="inductor-"))
    from benchmarks.torch.products import measure

    until = time.monotonic() + options.seconds
    header = {**software(), "gpu": "\n".join(gpu_states())}
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
