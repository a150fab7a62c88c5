"""Time the search of cuBLASLt's algorithms for single GEMMs: what each stage costs, and what it finds.

    python -m benchmarks.torch search --out search.json [--sizes 768x2048x7168,64x4096x14336] [--short] [--seconds 120]

Each GEMM in bf16 is searched as during a compile, all of them twice: the first time in a process loads the kernels. The
GPU is idle at the start and at the end of each stage, so a stage has its own time, and the whole takes a little longer
than in a compile. A line has the milliseconds of the search and of its stages, how many algorithms were estimated in
each pass, the microseconds of ATen and of the best finalist, and what was picked.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common import software
from gemmdb.errors import InputError
from gemmdb.key.problem import Problem

SIZES = (
    "24x4096x4096,48x8192x28672,64x4096x14336,128x6144x4096,176x6144x4096,192x8192x8192,256x5120x5120,384x2048x7168,"
    "512x4096x4096,768x2048x7168,1024x3072x768,1536x5120x2048,3000x4096x4096,2048x28672x4096"
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--out", type=Path, default=Path("search.json"), metavar="FILE", help="default: search.json")
    parser.add_argument("--sizes", default=SIZES, metavar="MxNxK,...", help="default: 14 GEMMs of models")
    parser.add_argument("--short", action="store_true", help="the shorter search, which short GEMMs get")
    parser.add_argument("--seconds", type=float, default=120, help="begin no search after that time; default: 120")


def main(options: argparse.Namespace) -> None:
    """Search all GEMMs twice, and write after each."""
    problems = parsed(options.sizes)
    from benchmarks.torch import stages
    from gemmdb.inductor.benchmark.limits import EXTENTS

    device, extent = stages.device(), EXTENTS[1 if options.short else 0]
    header, until = software(), time.monotonic() + options.seconds
    rows: list[dict[str, Any]] = []
    for turn in ("first", "second"):
        for problem in problems:
            if time.monotonic() > until:
                return
            rows.append({"turn": turn, **stages.searched(problem, device, extent)})
            options.out.write_text(json.dumps({**header, "searches": rows}, indent=1))
            print(line(rows[-1]), flush=True)


def parsed(sizes: str) -> list[Problem]:
    """The GEMMs of a text such as `24x4096x4096,64x4096x14336`. Raises InputError."""
    found = []
    for one in sizes.split(","):
        numbers = one.strip().split("x")
        if len(numbers) != 3 or not all(number.isdigit() for number in numbers):
            raise InputError(f"--sizes: MxNxK, such as 64x4096x14336, not {one!r}")
        m, n, k = map(int, numbers)
        found.append(Problem.gemm("mm", m=m, n=n, k=k))
    return found


def line(row: Mapping[str, Any]) -> str:
    """A row as text."""
    m, n, k = row["sizes"]
    head = f"{row['turn']:6} {m} x {n} x {k}:"
    if "failure" in row:
        return f"{head} {row['failure']}"
    stages = ", ".join(f"{name} {1e3 * seconds:.1f}" for name, seconds in row["stages_s"].items())
    best = min((statistics.median(us) for us in row["finalists"].values()), default=None)
    words = [
        f"{head} {1e3 * row['seconds']:.0f} ms ({stages})",
        f"estimated {' + '.join(map(str, row['estimated']))}",
        f"{len(row['aten'])} rounds",
    ]
    if best is not None:
        words.append(f"ATen {statistics.median(row['aten']):.2f} us, best {best:.2f} us")
    if row["wrong"]:
        words.append(f"{len(row['wrong'])} wrong")
    words.append(f"picked {row['picked']}" + (f", {row['speedup']:.3f}x" if row["speedup"] else ""))
    return "; ".join(words)
