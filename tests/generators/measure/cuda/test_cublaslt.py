"""cuBLASLt's algorithms in a build, on a library that is pretended: what they are bound to, and which are refused."""

from types import SimpleNamespace

import pytest
import torch
from kit.devices import H200
from kit.gpu import ALGORITHM, algorithm

from gemmdb.cublaslt import library
from gemmdb.generators.measure.cuda import calls, cublaslt
from gemmdb.generators.measure.cuda.artifacts import Emission, Emitted, Triton, required
from gemmdb.generators.measure.operands import operands
from gemmdb.kernels.menus import cublaslt_nearby
from gemmdb.key.problem import Problem

UNSUPPORTED, HUNGRY = 7, 8
"""Values of `custom` of an algorithm that is not supported, and of one that needs much workspace."""


class Matmul:
    """Records its shape and its runs."""

    def __init__(self, shape, device):
        self.shape, self.runs = shape, []

    def heuristics(self, count, workspace):
        assert workspace == cublaslt.MAX_WORKSPACE
        return [SimpleNamespace(algorithm={**ALGORITHM, "custom": custom}) for custom in (3, 70_000, 4)][:count]

    def supported(self, attributes):
        if attributes["custom"] == UNSUPPORTED:
            raise library.Error("cublasLtMatmulAlgoCheck", 15)
        return attributes, 2**40 if attributes["custom"] == HUNGRY else 0

    def run(self, *arguments):
        self.runs.append(arguments)


@pytest.fixture(autouse=True)
def pretended(monkeypatch):
    """A cuBLASLt without a GPU."""
    monkeypatch.setattr(library, "loaded", lambda: object())
    monkeypatch.setattr(library, "version", lambda: 130_100)
    monkeypatch.setattr(cublaslt, "Matmul", Matmul)
    monkeypatch.setattr(cublaslt_nearby, "attributes", lambda algorithm: algorithm)
    monkeypatch.setattr(cublaslt.detect, "cuda", lambda: H200)
    monkeypatch.setattr(cublaslt, "_workspace", lambda: torch.empty(cublaslt.MAX_WORKSPACE, dtype=torch.uint8))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=77))
    cublaslt._matmul.cache_clear()
    yield
    cublaslt._matmul.cache_clear()


def gemm(op="mm", **rest) -> Problem:
    return Problem.gemm(op, **{"m": 24, "n": 64, "k": 32, **rest})


def copies(problem, count=2):
    found = [operands(problem, torch.device("cpu"), seed).named for seed in range(count)]
    return [{**one, "out": torch.empty(problem.shapes[2], dtype=torch.bfloat16)} for one in found]


@pytest.mark.parametrize("problem", [
    gemm(), gemm(layout="nn"), gemm(layout="tn"), gemm(m=1), gemm("bmm", batch=3), gemm("addmm"),
    gemm("scaled_mm"), gemm("scaled_mm", scales="row", bias="1d"), gemm("scaled_mm", scales="block", k=512),
], ids=["nt", "nn", "tn", "row", "bmm", "addmm", "scaled", "scaled rows", "scaled blocks"])  # fmt: skip
def test_an_algorithm_runs_on_the_memory_of_each_copy(problem):
    tensors = copies(problem)
    call, _ = calls.bind(problem, algorithm(), tensors)
    for index in (1, 0):
        call(index)
    matmul = cublaslt._matmul(problem)
    names = [name for name in ("bias", "scale_a", "scale_b") if name in tensors[0]]
    for one, (ran, a, b, out, _, size, stream, *extras) in zip(tensors[::-1], matmul.runs, strict=True):
        assert ran == ALGORITHM
        assert (a, b, out) == (one["A"].data_ptr(), one["B"].data_ptr(), one["out"].data_ptr())
        assert (size, stream) == (cublaslt.MAX_WORKSPACE, 77)
        assert extras == [one[name].data_ptr() for name in names]
    shape, (a, b) = matmul.shape, (tensors[0]["A"], tensors[0]["B"])
    assert list(shape.extras) == names
    for name, extra in shape.extras.items():
        assert extra.fits(tensors[0][name].shape, tensors[0][name].stride()), name
    for matrix, tensor in ((shape.a, a), (shape.b, b)):
        stride = tensor.stride(-2 if matrix.by_rows else -1)
        assert matrix.leading == stride
        assert tensor.stride(-1 if matrix.by_rows else -2) == 1
        assert matrix.batch_stride == (tensor.stride(0) if problem.spec.batched else 0)


def test_an_algorithm_that_cannot_run_is_refused_with_a_reason():
    for custom, reason in ((UNSUPPORTED, "cuBLASLt 130100 does not support"), (HUNGRY, "bytes of workspace")):
        with pytest.raises(RuntimeError, match=reason):
            calls.bind(gemm(), algorithm(custom=custom), copies(gemm()))


def test_the_heuristics_proposals_are_configs_that_a_table_can_hold(monkeypatch):
    assert cublaslt.proposed(gemm(), 3) == [algorithm(custom=3), algorithm(custom=4)]
    assert cublaslt.proposed(gemm(), 1) == [algorithm(custom=3)]
    assert cublaslt.proposed(gemm("scaled_mm"), 3) == [algorithm(custom=3), algorithm(custom=4)]
    assert cublaslt.proposed(gemm("scaled_mm", n=72), 3) == []
    assert cublaslt.proposed(gemm("mixed_mm"), 3) == []
    assert cublaslt.proposed(gemm(dtype="fp32"), 3) == []
    monkeypatch.setattr(library, "loaded", lambda: None)
    assert cublaslt.proposed(gemm(), 3) == []


def test_algorithms_near_the_best_are_supported_new_and_of_each_alike():
    best, second, known = algorithm(tile=20), algorithm(tile=20, cluster=5), algorithm(tile=20, cluster=3)
    found = cublaslt.near(gemm(), [best, second], {best, second, known}, 1000)
    assert len(set(found)) == len(found)
    assert not {best, second, known} & set(found)
    assert not {UNSUPPORTED, HUNGRY} & {config.values["custom"] for config in found}
    few = cublaslt.near(gemm(), [best, second], {best, second, known}, 6)
    assert few == found[:6]
    assert [config.values["cluster"] for config in few] == [2, 5] * 3


def test_nothing_is_compiled_for_a_call_and_the_code_of_what_follows_it_is_generated():
    emitted = Emitted.code_of(algorithm())
    assert required(gemm(), algorithm()) == required(gemm("addmm"), emitted) == []
    followed = gemm(fusion="pointwise")
    (kernel,) = required(followed, algorithm())
    assert isinstance(kernel, Triton)
    assert required(followed, emitted) == [Emission(followed, emitted)]
