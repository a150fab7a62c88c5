"""Which algorithms the library is asked for: those that are known to be safe, and those of its own heuristic."""

from ctypes import POINTER, cast

import pytest
from kit.cublaslt import Library, instead
from kit.gpu import ALGORITHM

from gemmdb.cublaslt import library
from gemmdb.cublaslt.library import Heuristic
from gemmdb.cublaslt.matmul import Matmul
from gemmdb.cublaslt.shape import Matrix, Shape

STRANGE = {**ALGORITHM, "tile": 636}


class Crashing(Library):
    """Its check ends the test, as cuBLAS 13.1 ends the process."""

    named = ()

    def _answer(self, name, arguments):
        if name == "cublasLtMatmulAlgoCheck":
            pytest.fail("the process ended")
        return super()._answer(name, arguments)


def matmul(n: int = 64, dtype: str = "bf16") -> Matmul:
    a, b, out = Matrix(dtype, True, 64), Matrix(dtype, False, 64), Matrix("bf16", True, n)
    return Matmul(Shape(64, n, 64, a, b, out), 0)


@pytest.mark.parametrize("attributes", [STRANGE, {**ALGORITHM, "algo": 23}])
def test_the_library_is_not_asked_for_what_may_end_the_process(monkeypatch, attributes):
    instead(monkeypatch, Crashing())
    with pytest.raises(library.Error):
        matmul().supported(attributes)
    instead(monkeypatch, Library(workspace=64))
    assert matmul().supported(ALGORITHM)[1] == 64


@pytest.mark.parametrize(("version", "capability"), [(130_200, 90), (120_904, 90), (130_100, 100)])
def test_nothing_is_known_of_another_release_or_gpu(monkeypatch, version, capability):
    instead(monkeypatch, Crashing())
    monkeypatch.setattr(library, "version", lambda: version)
    monkeypatch.setattr(library, "capability", lambda device: capability)
    with pytest.raises(library.Error):
        matmul().supported(ALGORITHM)


@pytest.mark.parametrize(("n", "dtype"), [(30_522, "bf16"), (64, "int8")])
def test_nothing_is_known_of_rows_that_tensor_copies_cannot_store_nor_of_bytes(monkeypatch, n, dtype):
    instead(monkeypatch, Crashing())
    with pytest.raises(library.Error):
        matmul(n, dtype).supported(ALGORITHM)


BF16, FP8 = Matrix("bf16", True, 64), Matrix("fp8_e4m3", True, 64)


@pytest.mark.parametrize(
    "shape",
    [
        Shape(64, 64, 64, FP8, FP8, BF16, scales="tensor"),
        Shape(64, 64, 64, BF16, BF16, BF16, activation="relu"),
        Shape(64, 64, 64, BF16, BF16, BF16, activation="gelu_tanh"),
    ],
)
def test_for_fp8_and_activations_the_library_is_asked_for_what_its_heuristic_names_alone(monkeypatch, shape):
    """No other is known to be safe."""
    instead(monkeypatch, Crashing())
    with pytest.raises(library.Error):
        Matmul(shape, 0).supported(ALGORITHM)
    instead(monkeypatch, Library(workspace=64))
    assert Matmul(shape, 0).supported(ALGORITHM)[1] == 64


def test_what_the_heuristic_names_is_asked_for(monkeypatch):
    found = Crashing()
    found.named = (ALGORITHM, {**ALGORITHM, "algo": 23})
    instead(monkeypatch, found)
    with pytest.raises(pytest.fail.Exception):
        matmul().supported({**ALGORITHM, "algo": 23})


def test_of_an_older_algorithm_its_heuristic_names_more_bytes_than_attributes(monkeypatch):
    class Older(Library):
        def _answer(self, name, arguments):
            status = super()._answer(name, arguments)
            if name == "cublasLtMatmulAlgoGetHeuristic":
                cast(arguments[-2], POINTER(Heuristic))[0].algorithm.data[7] = 5
            return status

    instead(monkeypatch, Older(workspace=64))
    assert matmul(dtype="int8").supported(ALGORITHM)[1] == 64
