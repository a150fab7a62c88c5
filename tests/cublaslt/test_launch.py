"""The call of output code: what the library is handed, and that torch computes the product where it cannot."""

from __future__ import annotations

import gc
import logging
import threading
from ctypes import POINTER, c_float, c_int32, c_uint64, cast
from dataclasses import astuple, replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.cublaslt import STATUS_NOT_SUPPORTED, Library, instead

from gemmdb.cublaslt import launch, library
from gemmdb.cublaslt.shape import Matrix, Shape

M, N, K = 6, 4, 8
ATTRIBUTES = {"algo": 66, "tile": 601, "stages": 35, "split_k": 1, "reduction": 0, "swizzle": 0, "custom": 1,
              "inner": 0, "cluster": 2}  # fmt: skip
PLAIN = Shape(M, N, K, Matrix("fp32", True, K), Matrix("fp32", False, K), Matrix("fp32", True, N))
BIASED = Shape(M, N, K, PLAIN.a, PLAIN.b, PLAIN.out, bias="fp32")
WITH_MATRIX = replace(BIASED, matrix_bias=True)


def prepared(shape: Shape = PLAIN, function: Any = torch.mm, **changes: Any) -> Any:
    return launch.prepare(function, 0, ATTRIBUTES, astuple(shape), **changes)


def tensors() -> tuple[Any, Any, Any]:
    return torch.randn(M, K), torch.randn(N, K), torch.full((M, N), float("nan"))


def addresses(call: tuple[Any, ...]) -> tuple[Any, ...]:
    """A, B, C, D and the workspace of a call, whose matrices are those of the transposed product."""
    return call[5], call[3], call[8], call[10], call[13]


def test_the_library_gets_the_addresses_of_the_operands(standing):
    x, w, out = tensors()
    launched = prepared(offsets=(K, 2 * K))
    assert not standing.calls, "nothing is prepared before the first call"
    launched(x, w, out, 77)
    (call,) = standing.calls
    at = out.data_ptr()
    assert addresses(call) == (x.data_ptr() + 4 * K, w.data_ptr() + 8 * K, at, at, None)
    assert call[14:] == (0, 77)


def test_the_algorithm_and_the_scalars_stay_where_the_library_reads_them(standing):
    x, w, out = tensors()
    launched = prepared()
    launched(x, w, out, 0)
    others = [(c_uint64 * 8)(*[2**64 - 1] * 8) for _ in range(20_000)]  # They take whatever memory was freed.
    launched(x, w, out, 0)
    call = standing.calls[1]
    algorithm, alpha, beta = (cast(call[place], POINTER(kind)) for place, kind in _READ)
    assert len(others) == 20_000
    assert algorithm.contents[:9] == [ATTRIBUTES[name] for name in library.CONFIG]
    assert (alpha.contents.value, beta.contents.value) == (1.0, 0.0)


_READ = (12, c_int32 * 16), (2, c_float), (7, c_float)


def test_the_workspace_is_handed_over(standing):
    x, w, out = tensors()
    standing.workspace, space = 64, torch.empty(64, dtype=torch.uint8)
    prepared(workspace_bytes=64)(x, w, out, 0, space)
    assert addresses(standing.calls[0])[-1] == space.data_ptr()
    assert standing.calls[0][14] == 64


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (None, "no cuBLASLt is loaded"),
        (Library(cublasLtCreate=1), "cublasLtCreate: cublasStatus 1"),
        (Library(cublasLtMatmulAlgoInit=7), "cublasLtMatmulAlgoInit: cublasStatus 7"),
        (Library(cublasLtMatmulAlgoConfigSetAttribute=7), "SetAttribute: cublasStatus 7"),
        (Library(cublasLtMatmulAlgoCheck=STATUS_NOT_SUPPORTED), "AlgoCheck: cublasStatus 15"),
        (Library(workspace=128), "needs 128 bytes of workspace, not 64"),
        (Library(cublasLtMatmul=STATUS_NOT_SUPPORTED), "cublasLtMatmul: cublasStatus 15"),
    ],
)
def test_torch_computes_what_the_library_cannot(monkeypatch, caplog, found, said):
    instead(monkeypatch, found)
    launched, asked = prepared(workspace_bytes=64), []
    with caplog.at_level(logging.WARNING, "gemmdb"):
        for _ in range(2):
            x, w, out = tensors()
            launched(x, w, out, 0, torch.empty(64, dtype=torch.uint8))
            assert torch.equal(out, torch.mm(x, w.t()))
            asked.append(len(found.calls) if found else 0)
    (warning,) = caplog.messages
    assert said in warning
    assert asked[0] == asked[1], "it is not asked again"


def test_torch_gets_views_at_the_offsets():
    storage, w = torch.randn(2 + M * 10), torch.randn(K + 3, N)
    bias, out = torch.randn(N + 1), torch.empty(M, N)
    shape = Shape(M, N, K, Matrix("fp32", True, 10), Matrix("fp32", True, N), PLAIN.out, bias="fp32")
    launched = prepared(shape, torch.addmm, offsets=(1, 3 * N, 1))
    launched(storage[1:], w, out, 0, None, bias)
    x = storage[2:].view(M, 10)[:, :K]
    assert torch.equal(out, torch.addmm(bias[1:], x, w[3:]))


@pytest.mark.parametrize("batch", [1, 3])
def test_torch_gets_batches(batch):
    x, w, out = torch.randn(batch, M, K), torch.randn(batch, N, K), torch.empty(batch, M, N)
    a, b = Matrix("fp32", True, K, M * K), Matrix("fp32", False, K, N * K)
    shape = Shape(M, N, K, a, b, Matrix("fp32", True, N, M * N), batch=batch)
    prepared(shape, torch.bmm)(x, w, out, 0)
    assert torch.equal(out, torch.bmm(x, w.mT))


def test_a_matrix_is_added_from_where_it_lies(standing):
    x, w, out = tensors()
    launched, given = prepared(WITH_MATRIX, torch.addmm, offsets=(0, 0, N)), [torch.randn(M + 1, N) for _ in range(3)]
    for bias in given:
        launched(x, w, out, 0, None, bias)
    assert [(call[8], call[10]) for call in standing.calls] == [
        (one.data_ptr() + 4 * N, out.data_ptr()) for one in given
    ]
    assert {cast(call[7], POINTER(c_float)).contents.value for call in standing.calls} == {1.0}
    assert len({call[1].value for call in standing.calls}) == 1, "its address is no part of the operation"
    assert standing.biases == {}
    assert set(standing.epilogues.values()) == {1}


@pytest.mark.parametrize("rows", [None, M - 2])
def test_torch_adds_the_matrix_where_the_library_cannot(monkeypatch, rows):
    instead(monkeypatch, None)
    x, w, bias = torch.randn(M, K), torch.randn(N, K), torch.randn(M + 1, N)
    out, how = torch.empty(rows or M, N), {"offsets": (0, 0, N)}
    if rows:
        launch.prepare_rows(torch.addmm, 0, ATTRIBUTES, astuple(WITH_MATRIX), **how)(rows, x, w, out, 0, None, bias)
    else:
        prepared(WITH_MATRIX, torch.addmm, **how)(x, w, out, 0, None, bias)
    assert torch.equal(out, torch.addmm(bias[1 : 1 + len(out)], x[: len(out)], w.t()))


@pytest.mark.parametrize(("activation", "plain", "biased"), [("", 1, 4), ("relu", 2, 6), ("gelu_tanh", 32, 36)])
def test_the_activation_is_the_library_s(standing, activation, plain, biased):
    x, w, out = tensors()
    prepared(replace(PLAIN, activation=activation))(x, w, out, 0)
    prepared(replace(BIASED, activation=activation), torch.addmm)(x, w, out, 0, None, torch.randn(N))
    without, *_, with_bias = (standing.epilogues[call[1].value] for call in standing.calls)
    assert (without, with_bias) == (plain, biased)


def test_each_bias_has_a_descriptor_that_never_changes(standing):
    x, w, out = tensors()
    launched, biases = prepared(BIASED, torch.addmm, offsets=(0, 0, 1)), [torch.randn(N + 1) for _ in range(3)]
    for bias in [*biases, *biases]:
        launched(x, w, out, 0, None, bias)
    used = [call[1].value for call in standing.calls]
    assert [standing.biases[one] for one in used] == [bias.data_ptr() + 4 for bias in [*biases, *biases]]
    assert used[:3] == used[3:]
    assert not standing.changed


def test_a_descriptor_is_destroyed_by_the_library_that_made_it(monkeypatch):
    """Another one would end the process."""
    maker, other = Library(), Library()
    instead(monkeypatch, maker)
    launched = prepared(BIASED)
    launched(*tensors(), 0, None, torch.randn(N))
    assert maker.described
    instead(monkeypatch, other)
    other.described.update({made: {} for made in maker.described})
    kept = dict(other.described)
    maker.calls.clear()
    del launched
    gc.collect()
    assert (maker.described, other.described) == ({}, kept)


def test_descriptors_of_old_biases_are_destroyed(standing):
    x, w, out = tensors()
    launched = prepared(BIASED, torch.addmm)
    for start in range(3 * launch.MAX_OPERATIONS):
        launched(x, w, out, 0, None, torch.empty(1024)[start : start + N])
    standing.calls.clear()
    gc.collect()
    assert launch.MAX_OPERATIONS <= len(standing.biases) + 1 <= launch.MAX_OPERATIONS + 2
    assert not standing.changed


def test_threads_share_a_call(standing):
    launched, wrong, ready = prepared(BIASED, torch.addmm), [], threading.Barrier(8)

    def work() -> None:
        x, w, out = tensors()
        biases = [torch.randn(N) for _ in range(20)]
        ready.wait()
        for bias in biases * 5:
            launched(x, w, out, 0, None, bias)
            call = next(call for call in reversed(standing.calls) if call[10] == out.data_ptr())
            if standing.biases[call[1].value] != bias.data_ptr():
                wrong.append(bias)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert not standing.changed


def test_each_number_of_rows_is_prepared_once_and_torch_computes_those_beyond_the_limit(standing, monkeypatch, caplog):
    monkeypatch.setattr(launch, "MAX_ROWS", 3)
    launched = launch.prepare_rows(torch.mm, 0, ATTRIBUTES, astuple(PLAIN))
    for rows in (1, 2, 5, 1, 2, 5):
        launched(rows, torch.randn(rows, K), torch.randn(N, K), torch.empty(rows, N), 0)
    assert len(standing.calls) == 6
    layouts = [call[6] for call in standing.calls]
    assert layouts[:3] == layouts[3:]
    assert len({one.value for one in layouts}) == 3
    made = standing._made
    for rows in (6, 7, 6):
        x, w, out = torch.randn(rows, K), torch.randn(N, K), torch.empty(rows, N)
        launched(rows, x, w, out, 0)
        assert torch.equal(out, torch.mm(x, w.t()))
    assert len(standing.calls) == 6
    assert standing._made == made
    assert not caplog.messages
