"""Activations within cuBLASLt's call, in compiled programs: their values, what is not a number, graphs, C++ code."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.gpu import algorithm, anew, close, compiled, rand, served

import gemmdb.inductor
from gemmdb import Config, Problem
from gemmdb.cublaslt import library
from gemmdb.cublaslt.matmul import Matmul, shape_of
from gemmdb.kernels.config import ATEN
from gemmdb.kernels.cublaslt import ACTIVATIONS
from gemmdb.kernels.menus.cublaslt_nearby import heuristic

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("clean")]
M, N, K = 96, 1024, 512
EACH = pytest.mark.parametrize("activation", ACTIVATIONS)
BIASED = pytest.mark.parametrize("bias", [False, True], ids=["mm", "addmm"])


def apply(activation: str, x: Any) -> Any:
    return torch.relu(x) if activation == "relu" else torch.nn.functional.gelu(x, approximate="tanh")


def model(activation: str, bias: bool) -> Callable[..., Any]:
    def run(x: Any, w: Any, b: Any) -> Any:
        return apply(activation, torch.addmm(b, x, w.t()) if bias else torch.mm(x, w.t()))

    return run


@functools.cache
def proposed(activation: str, bias: bool, m: int = M, dtype: str = "bf16") -> tuple[Config, ...]:
    """The algorithms of cuBLASLt's heuristic for x @ w.t()."""
    torch.mm(rand(16, 16), rand(16, 16))
    problem = Problem.gemm("addmm" if bias else "mm", m=m, n=N, k=K, dtype=dtype)
    shape = replace(shape_of(problem, K, K), activation=activation)
    named = heuristic(Matmul(shape, torch.cuda.current_device()), 16)
    return tuple(with_activation(one, activation) for one in named)


def with_activation(config: Config, activation: str) -> Config:
    return Config.of("cublaslt", "matmul_activation", **config.values, activation=activation)


def given(m: int = M, dtype: str = "bfloat16") -> tuple[Any, Any, Any]:
    return rand(m, K, dtype=dtype), rand(N, K, dtype=dtype) / K**0.5, rand(N, dtype=dtype)


def doubles(*tensors: Any) -> list[Any]:
    return [one.double() for one in tensors]


@pytest.fixture(autouse=True)
def nothing_fell_back(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Any:
    yield
    if "refuses" not in request.node.name:
        assert not [one for one in caplog.get_records("call") if "compiled for cuBLASLt" in one.getMessage()]


@EACH
@BIASED
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("m", [1, 33, 512])
def test_values(activation: str, bias: bool, dtype: str, m: int) -> None:
    configs = proposed(activation, bias, m, {"bfloat16": "bf16", "float16": "fp16"}[dtype])
    assert configs
    inputs, run = given(m, dtype), model(activation, bias)
    wanted, by_aten = run(*doubles(*inputs)), run(*inputs).double()
    for config in configs[:3]:
        anew()
        found, code = compiled(run, *inputs, config=config)
        assert served() == [config.text], gemmdb.inductor.stats()["products"]
        assert "gemmdb_cublaslt.prepare(" in code
        assert "triton_poi" not in code
        error, aten_error = ((one.double() - wanted).abs().max() for one in (found, by_aten))
        assert error <= 1.5 * aten_error + 1e-3, "it rounds once less than ATen"


@EACH
def test_what_is_not_a_number_stays(activation: str) -> None:
    x, w, b = given()
    x[3, 5] = float("nan")
    if activation == "relu":  # GELU of minus infinity is no number for torch, and zero in theory.
        x[7, 9], x[11, 1] = float("inf"), float("-inf")
    wanted = model(activation, True)(x, w, b)
    for config in proposed(activation, True)[:4]:
        anew()
        found, _ = compiled(model(activation, True), x, w, b, config=config)
        assert served() == [config.text]
        assert torch.equal(found.isnan(), wanted.isnan()), config.text
        assert torch.equal(found.isinf(), wanted.isinf()), config.text


@EACH
def test_tokens_of_a_program(activation: str) -> None:
    x, w, b = given()

    def run(x: Any, w: Any, b: Any) -> Any:
        return apply(activation, torch.nn.functional.linear(x.view(4, M // 4, K), w, b)) @ w

    config = proposed(activation, True)[0]
    with torch.no_grad():
        found, _ = compiled(run, x, w, b, config=config)
        close(found, run(*doubles(x, w, b)))
    assert sorted(served()) == sorted([config.text, ATEN.text])


@EACH
def test_reduce_overhead(activation: str) -> None:
    run, config = model(activation, True), proposed(activation, True)[0]
    compiled_run = torch.compile(run, mode="reduce-overhead")
    with torch.no_grad(), gemmdb.inductor.force(config):
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            inputs = given()
            close(compiled_run(*inputs), run(*doubles(*inputs)))
    assert set(served()) == {config.text}


@EACH
@BIASED
def test_cpp_wrapper(activation: str, bias: bool) -> None:
    inputs, run, config = given(), model(activation, bias), proposed(activation, bias)[0]
    with torch.no_grad():
        found, code = compiled(run, *inputs, config=config, options={"cpp_wrapper": True})
    assert "struct Library {" in code
    assert served() == [config.text]
    close(found, run(*doubles(*inputs)))


@EACH
def test_what_the_library_refuses_is_aten(activation: str) -> None:
    inputs, run = given(), model(activation, True)
    found, code = compiled(run, *inputs, config=with_activation(algorithm(algo=4000), activation))
    assert "gemmdb_cublaslt" not in code
    assert served() == [ATEN.text]
    close(found, run(*inputs))


@EACH
@pytest.mark.parametrize("wrapper", ["python", "cpp"])
def test_a_call_that_the_library_refuses_later_is_aten(
    activation: str, wrapper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a cached graph and another cuBLASLt."""
    from gemmdb.inductor.lower.adapter import cublaslt

    monkeypatch.setattr(cublaslt, "workspace", lambda *asked: 0)
    inputs, run = given(), model(activation, True)
    config = with_activation(algorithm(algo=4000), activation)
    with torch.no_grad():
        found, _ = compiled(run, *inputs, config=config, options={"cpp_wrapper": wrapper == "cpp"})
    assert served() == [config.text]
    assert library.loaded() is not None
    close(found, run(*inputs))
