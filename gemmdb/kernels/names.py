"""Short names of problems, kernels and runs, for people."""

from __future__ import annotations

from collections.abc import Mapping

from gemmdb.kernels.config import Config
from gemmdb.key.problem import Problem


def short(problem: Problem) -> str:
    """The name of a problem without what goes without saying: `addmm 784x1536x384 bf16 +bias`, sizes as M x N x K."""
    batch = f"{problem.batch} of " if problem.spec.batched else ""
    words = [f"{problem.op} {batch}{problem.m}x{problem.n}x{problem.k}", dtypes(problem)]
    if problem.spec.grouped:
        words.append(f"{problem.groups} groups of {problem.ragged.upper()}")
    if problem.bias is not None:
        words.append("+bias")
    if problem.fusion != "none":
        words.append(f"+{problem.fusion}")
    name = " ".join(words)
    return f"{name}, constant" if problem.constant else name


def dtypes(problem: Problem) -> str:
    """The dtypes of the operands: `bf16`, or `bf16 x int8`."""
    return " x ".join(dict.fromkeys((problem.a.dtype, problem.b.dtype)))


def kernel(config: Config) -> str:
    """Backend and kernel with its tile where it has one: `triton:tile 64x128x64`."""
    values = config.values
    tile = [values.get(f"block_{side}") for side in "mnk"]
    return config.name if None in tile else f"{config.name} {'x'.join(map(str, tile))}"


def ranged(problem: str, ranges: Mapping[str, tuple[int, int | None]]) -> str:
    """The text of a problem with the ranges of its symbolic sizes, `mm m=16 ... (m 2..64, n 1..)`; `gemmdb lookup`
    reads it."""
    listed = ", ".join(f"{name} {low}..{'' if high is None else high}" for name, (low, high) in ranges.items())
    return f"{problem} ({listed})" if listed else problem
