"""CPU candidates: ATen, its weight-only GEMM, and Inductor's C++ template with threading and cache blocking choices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, product

from gemmdb.devices.detect import cpu_multiplies_tf32
from gemmdb.generators.backend import Candidate
from gemmdb.generators.effort import Effort
from gemmdb.kernels import default_mode
from gemmdb.kernels.aten import INT8PACK
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.registry import GPU_ALONE
from gemmdb.key import representatives
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import installed, minor
from gemmdb.lookup.lowering import WEIGHT_ONLY, lowering_rejection
from gemmdb.rejected import Rejected

Factors = tuple[int, int, int]

AUTO: Factors = (0, 0, 0)
"""Let the template choose."""
CACHE_BLOCKS: tuple[Factors, ...] = ((1, 1, 64), (4, 1, 64), (1, 4, 16), (4, 4, 16), (16, 1, 16), (1, 1, 4), (8, 8, 64))
"""Cache blocks in register blocks (m, n, k); the template limits them to the problem's size."""
TEMPLATES = (3, 8, 32)
"""C++ configs per problem, by the effort's breadth."""
THREADINGS = (3, 5, 16)
"""How many of these configs differ in threading only, by breadth."""

SCALED_ROWS = (2, 12)
"""First torch version whose `_scaled_mm` supports row scales on a CPU. 2.11 supports one scale per operand."""


class CpuSpace:
    """CPU search space. `breadth` 0 tries the template's own blocking and its threading alternatives, 1 and 2 add cache
    blockings."""

    def candidates(self, problem: Problem, device: Device, effort: Effort) -> Sequence[Candidate]:
        """Return ATen, also as it runs with symbolic rows if that differs, then `_weight_int8pack_mm` for a mixed_mm
        where that is not ATen, then the C++ template's variants. If the template cannot run the problem at all, one
        illegal candidate gives the reason."""
        auto, configs = template(AUTO, AUTO), [ATEN]
        if problem.op in GPU_ALONE:
            # The C++ template for batches packs nothing and is offered only under max-autotune. fp8 has none.
            return [Candidate(ATEN, rejection(ATEN, problem, device))]
        if problem.op in INT8PACK.ops and not default_mode.packs_int8(problem):
            configs.append(WEIGHT_ONLY)
        if rejection(auto, problem, device):
            configs.append(auto)
        else:
            configs += filter(None, [default_mode.symbolic_form(problem)])
            configs += islice(_templates(problem, device.units, effort.breadth), TEMPLATES[effort.breadth])
        return [Candidate(config, rejection(config, problem, device)) for config in configs]


def rejection(config: Config, problem: Problem, device: Device) -> Rejected | None:
    """Return why `config` must not run `problem` on `device`, or None if it may."""
    if problem.empty:
        return Rejected("Inductor leaves nothing to compute of a GEMM of size zero")
    if reason := representatives.rejection(problem):
        return reason
    if problem.scaled and problem.spec.grouped:
        return Rejected("ATen multiplies groups of fp8 only on a GPU")
    if problem.scales == "row" and _release() < SCALED_ROWS:
        return Rejected("ATen supports row scales on a CPU from torch 2.12 on")
    if problem.scales == "block":
        return Rejected("ATen supports no block scales on a CPU")
    if problem.spec.batched and (problem.k == 1 or problem.m == problem.n == 1):
        return Rejected("Inductor makes no GEMM of batches of vectors on a CPU, but multiplies their elements")
    if problem.numerics.fp32 == "tf32" and not cpu_multiplies_tf32():
        return Rejected("this CPU multiplies fp32 in full, also where TF32 is allowed")
    if config == ATEN or config.spec.measured_only:
        return None
    return config.rejection(problem, device) or lowering_rejection(config, problem)


def _release() -> tuple[int, ...]:
    """Return (major, minor) of the installed torch, without importing it; SCALED_ROWS if the version is unknown."""
    running = installed("cpu")
    numbers = minor(running.torch).split(".") if running else []
    return tuple(map(int, numbers)) if all(number.isdigit() for number in numbers) and numbers else SCALED_ROWS


def template(threads: Factors, blocks: Factors) -> Config:
    """Return the C++ template config with `threads` (m, n, k) and cache `blocks` (m, n, k); zeros leave the choice to
    the template."""
    values = {f"threads_{axis}": value for axis, value in zip("mnk", threads, strict=True)}
    values |= {f"blocks_{axis}": value for axis, value in zip("mnk", blocks, strict=True)}
    return Config.of("cpp", "packed_gemm", **values)


def threadings(problem: Problem, threads: int) -> list[Factors]:
    """Return ways to split `threads` over m, n and k, the most promising first.

    No dimension has more parts than the problem has blocks of 8 rows, 16 columns or 64 of K: more threads would idle.
    Splits that move the fewest elements come first: each part of n reads all of A, each part of m all of B. Splits of k
    come last: their partial sums need a second pass.
    """
    most = (-(-problem.m // 8), -(-problem.n // 16), -(-problem.k // 64))
    pairs = product(range(1, min(threads, most[0]) + 1), range(1, min(threads, most[1]) + 1))
    splits = [(m, n, threads // (m * n)) for m, n in pairs if threads % (m * n) == 0]
    fitting = [split for split in splits if split[2] <= most[2]]

    def cost(split: Factors) -> tuple[bool, int, Factors]:
        m, n, k = split
        return k > 1, problem.m * problem.k * n + problem.k * problem.n * m, split

    return sorted(fitting, key=cost)


def _templates(problem: Problem, threads: int, breadth: int) -> Iterator[Config]:
    yield template(AUTO, AUTO)
    splits = threadings(problem, threads)[: THREADINGS[breadth]] if threads > 1 else []
    if breadth == 0:
        yield from (template(split, AUTO) for split in splits[: TEMPLATES[0] - 2])
        yield template(AUTO, CACHE_BLOCKS[0])
        return
    yield from (template(split, AUTO) for split in splits)
    yield from (template(split, blocks) for blocks in CACHE_BLOCKS for split in [AUTO, *splits])
