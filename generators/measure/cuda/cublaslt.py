"""cuBLASLt on the GPU of this process: algorithms bound to operands, and those worth trying."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice

import torch

from gemmdb.cublaslt import library
from gemmdb.cublaslt.library import Algorithm
from gemmdb.cublaslt.matmul import MAX_WORKSPACE, Matmul
from gemmdb.cublaslt.shape import leading, shape_of
from gemmdb.devices import detect
from gemmdb.generators.measure.literals import literal
from gemmdb.kernels.config import Config
from gemmdb.kernels.menus.cublaslt_nearby import around, heuristic
from gemmdb.kernels.registry import KERNELS
from gemmdb.key.problem import Problem

Tensors = Mapping[str, torch.Tensor]


def bound(problem: Problem, config: Config, copies: Sequence[Tensors], out: str) -> Callable[[int], None]:
    """Return the call of an algorithm on a copy of the operands by its number, which writes the tensor named `out`.
    Raises RuntimeError if cuBLASLt does not support it for this problem."""
    matmul, algorithm = _matmul(problem), _supported(problem, config)
    workspace = _workspace()
    names = ("A", "B", out, *matmul.shape.extras)
    tensors = [[one[name] for name in names] for one in copies]

    def call(index: int) -> None:
        a, b, result, *extras = tensors[index]
        matmul.run(
            algorithm, a.data_ptr(), b.data_ptr(), result.data_ptr(), workspace.data_ptr(), workspace.nbytes,
            torch.cuda.current_stream().cuda_stream, *(one.data_ptr() for one in extras),
        )  # fmt: skip

    return call


def proposed(problem: Problem, most: int) -> list[Config]:
    """Return at most `most` algorithms that cuBLASLt's own heuristics propose for a problem, best first. Empty if they
    are not measured for it."""
    device, name = detect.cuda(), ("cublaslt", "matmul")
    if device is None or problem.op not in KERNELS[name].ops or library.loaded() is None:
        return []
    try:
        found = heuristic(_matmul(problem), most)
    except library.Error:
        return []
    return [config for config in found if config.rejection(problem, device) is None]


def near(problem: Problem, best: Sequence[Config], known: Collection[Config], most: int) -> list[Config]:
    """Return at most `most` algorithms that cuBLASLt supports for a problem and that resemble one of the `best`, as
    many of each. None is `known`."""

    def supports(config: Config) -> bool:
        try:
            return bool(_supported(problem, config))
        except RuntimeError:
            return False

    return list(islice((config for config in around(best, supports) if config not in known), most))


def _supported(problem: Problem, config: Config) -> Algorithm:
    """Return the algorithm of a config. Raises RuntimeError if cuBLASLt does not support it for this problem, or it
    needs too much workspace."""
    if library.loaded() is None:
        raise RuntimeError("torch has loaded no cuBLASLt")
    values = {name: int(value) for name, value in config.params}
    try:
        matmul = _matmul(problem)
        algorithm, needs = matmul.supported(values)
    except library.Error as error:
        raise RuntimeError(f"cuBLASLt {library.version()} does not support this algorithm here: {error}") from error
    if needs > MAX_WORKSPACE:
        raise RuntimeError(f"the algorithm needs {needs} bytes of workspace, more than {MAX_WORKSPACE}")
    return algorithm


@functools.lru_cache(maxsize=4)
def _matmul(problem: Problem) -> Matmul:
    """Return the descriptors for a problem's operands, which all its algorithms share."""
    first, second, _ = problem.shapes
    a, b = literal(problem.a, *first), literal(problem.b, *second)
    strides = (a.strides[0], b.strides[0]) if problem.spec.batched else (0, 0)
    of_a = leading(a.sizes, a.strides, problem.a.row_major)
    shape = shape_of(problem, of_a, leading(b.sizes, b.strides, problem.b.row_major), strides)
    return Matmul(shape, torch.cuda.current_device())


@functools.cache
def _workspace() -> torch.Tensor:
    # One for all calls, which follow each other on one stream; none expects anything in it.
    return torch.empty(MAX_WORKSPACE, dtype=torch.uint8, device="cuda")
