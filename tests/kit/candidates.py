"""Problems of a GPU, and the candidates that a build tries for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gemmdb.generators.effort import named
from gemmdb.generators.measure.cuda.space import CudaSpace
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from kit.devices import H200

OURS = {"triton:narrow", "triton:gemv"}


def gemm(m: int = 64, n: int = 4096, k: int = 4096, op: str = "mm", **rest: Any) -> Problem:
    return Problem.gemm(op, m=m, n=n, k=k, **rest)


def bmm(batch: int = 8, m: int = 64, n: int = 64, k: int = 128, **rest: Any) -> Problem:
    return Problem.gemm("bmm", batch=batch, m=m, n=n, k=k, **rest)


def scaled(m: int = 512, n: int = 4096, k: int = 4096, **rest: Any) -> Problem:
    return Problem.gemm("scaled_mm", m=m, n=n, k=k, **rest)


def fast(m: int) -> Problem:
    return scaled(m, fast_accum=True)


def int4(m: int = 16, n: int = 4096, k: int = 4096, **rest: Any) -> Problem:
    return Problem.gemm("mixed_mm", m=m, n=n, k=k, weight_dtype="int4", **rest)


def candidates(problem: Problem, effort: str = "standard", device: Device = H200) -> Any:
    """All candidates of an effort, ATen first."""
    return CudaSpace().candidates(problem, device, named(effort, "cuda"))


def tried(problem: Problem, effort: str = "standard", device: Device = H200) -> list[Config]:
    """The candidates but ATen, which comes first, and cuBLASLt's algorithms."""
    first, *found = (one.config for one in candidates(problem, effort, device))
    assert first == ATEN
    return [config for config in found if config.backend != "cublaslt"]


def names(configs: Iterable[Config]) -> set[str]:
    """The kernels of configs, each with its backend."""
    return {config.name for config in configs}
