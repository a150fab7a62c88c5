"""List the problems whose rows precede today's kernels: many of the configs that a build would try have no row of the
kernel as it is.

    python -m benchmarks.h200 outdated --out SHAPES.jsonl [--rows FOLDER] [--least 0.25] [--effort standard]

Prints, for each op and format of the weight, how many problems there are, which part of today's Triton configs and of
those of our newer CUDA kernels they lack in the mean, and how many lack at least the part `--least`. SHAPES lists
these, the ones that lack most first, for `python -m benchmarks.h200 build --rows none --shapes SHAPES`. Algorithms of
cuBLASLt do not count: their search differs between builds. Neither do Inductor's templates, which belong to a version
of torch, `cutlass:gemm`, which not all builds try, and mm and addmm, whose builds search algorithms and try few kernels
of Triton.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.common import write_shapes
from benchmarks.h200 import results
from gemmdb.cost.sizes import CLUSTERED
from gemmdb.devices import registry
from gemmdb.generators import effort as efforts
from gemmdb.generators.effort import Effort
from gemmdb.generators.files import archive
from gemmdb.generators.measure.cuda.space import CudaSpace
from gemmdb.kernels.config import Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem

DENSE = ("mm", "addmm")


@dataclass(frozen=True)
class Lacking:
    """A problem, and which part of today's configs of our kernels has no row."""

    problem: Problem
    part: float


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file of shapes to write")
    parser.add_argument("--rows", type=Path, metavar="FOLDER", help="a folder of archives; default: the newest results")
    parser.add_argument(
        "--least",
        type=float,
        default=0.25,
        metavar="PART",
        help="list problems that lack this part or more, 0 to 1 [%(default)s]",
    )
    parser.add_argument("--effort", default="standard", help="that of the builds; default: %(default)s")


def main(options: argparse.Namespace) -> None:
    """Read the rows, compare, print and write."""
    rows: dict[Problem, set[Config]] = defaultdict(set)
    for path in results.archives(options.rows or results.newest()):
        for row in archive.read(path):
            known = rows[row.problem]
            if row.config.is_current(row.toolchain.source):
                known.add(row.config)
    device = registry.find("NVIDIA H200")
    assert device is not None
    found = list(lacking(rows, device, efforts.named(options.effort, "cuda")))
    print("\n".join(told(found, options.least)))
    most = sorted((one for one in found if one.part >= options.least), key=lambda one: (-one.part, one.problem.text))
    write_shapes(options.out, (one.problem for one in most))
    print(f"{options.out}: {len(most)} problems")


def lacking(rows: Mapping[Problem, Collection[Config]], device: Device, effort: Effort) -> Iterator[Lacking]:
    """Yield the problems that our kernels have configs for."""
    space = CudaSpace()
    for problem, known in rows.items():
        if problem.op in DENSE:
            continue
        tried = [one.config for one in space.candidates(problem, device, effort) if one.rejected is None]
        ours = [config for config in tried if _counts(config)]
        if ours:
            yield Lacking(problem, sum(config not in known for config in ours) / len(ours))


def _counts(config: Config) -> bool:
    own = config.backend == "triton" and not config.kernel.startswith("inductor_")
    return own or config.name in CLUSTERED


def told(found: Collection[Lacking], least: float) -> Iterator[str]:
    """A line for each op and format."""
    parts: dict[str, list[float]] = defaultdict(list)
    for one in found:
        parts[_kind(one.problem)].append(one.part)
    for kind, own in sorted(parts.items()):
        many = sum(part >= least for part in own)
        yield f"{kind}: {len(own)} problems lack {fmean(own):.0%} in the mean, {many} at least {least:.0%}"


def _kind(problem: Problem) -> str:
    if problem.int4 is not None:
        return f"{problem.op}, int4"
    return f"{problem.op}, scales: {problem.scales}" if problem.scaled else problem.op
