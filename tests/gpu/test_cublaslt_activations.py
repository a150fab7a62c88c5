"""Activations within cuBLASLt's call, in compiled programs: their values, what is not a number, graphs, C++ code."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.gpu import algorithm, anew, close, compiled, rand, served

import gemmdb.inductor
from gemmdb import Config, Policy, Problem
from gemmdb.cublaslt import library
from gemmdb.cublaslt.matmul import Matmul
from gemmdb.cublaslt.shape import shape_of
from gemmdb.inductor.benchmark import algorithm_trial, algorithms
from gemmdb.inductor.benchmark.limits import BUDGET
from gemmdb.kernels.config import ATEN
from gemmdb.kernels.cublaslt import ACTIVATIONS
from gemmdb.kernels.menus.cublaslt_nearby import heuristic
from gemmdb.settings import Settings
from gemmdb.table.measurement import Status
from gemmdb.table.reader import Table

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
    return Config.of("cublaslt", "matmul_activation", **{**config.values, "activation": activation})


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
@BIASED
@pytest.mark.parametrize("wrapper", ["python", "cpp"])
def test_a_call_that_the_library_refuses_later_is_aten(
    activation: str, bias: bool, wrapper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a cached graph and another cuBLASLt: the algorithm needs a workspace, and the graph has none."""
    from gemmdb.inductor.lower.adapter import cublaslt

    monkeypatch.setattr(cublaslt, "workspace", lambda *asked: 0)
    inputs, run = given(), model(activation, bias)
    config = with_activation(algorithm(split_k=4, reduction=2), activation)
    with torch.no_grad():
        found, _ = compiled(run, *inputs, config=config, options={"cpp_wrapper": wrapper == "cpp"})
    assert served() == [config.text]
    assert library.loaded() is not None
    close(found, run(*inputs))


@pytest.fixture
def confirmed(clean: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A function that compiles a model as a new process would, with the user's table alone. Returns its GEMMs."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr("gemmdb.table.catalog.shipped_tables", lambda: tmp_path / "none")
    policy = Policy(on_miss="aten", confirm=True, confirm_s=60.0, near=False, sku=False, model=False, horizontal=False)

    def run(model: Callable[..., Any], *inputs: Any) -> Any:
        anew()
        algorithms._KNOWN.clear()
        BUDGET.clear()
        gemmdb.inductor.enable(policy=policy)
        with torch.no_grad():
            close(torch.compile(model)(*inputs), model(*doubles(*inputs)))
        stats = gemmdb.inductor.stats()
        assert stats["errors"] == []
        return stats["products"]

    return run


@EACH
@BIASED
@pytest.mark.parametrize("m", [16, 96, 1024])
def test_a_compile_times_and_confirms_it(
    confirmed: Any, activation: str, bias: bool, m: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    races, real = list[Any](), algorithm_trial.race

    def race(*asked: Any) -> Any:
        races.append((asked[0].activation, real(*asked)))
        return races[-1][1]

    monkeypatch.setattr(algorithm_trial, "race", race)
    inputs = given(m)
    (product,) = confirmed(model(activation, bias), *inputs)
    for name, raced in races:
        best = {config.text: f"{median(us):.1f}" for config, us in raced.finalists.items()}
        print(f"race {name or 'plain'}: ATen {median(raced.aten or [0]):.1f} us, {best}, wrong {len(raced.wrong)}")
    print(product["config"], product["expected_us"], product["speedup_vs_aten"], product["note"])
    print(product["evidence"].get("confirmed"))
    assert [name for name, _ in races] == [activation, ""]
    assert not any(raced.wrong for _, raced in races)
    with Table.open(Settings.read().user_table) as table:
        rows = list(table.measurements())
    assert {row.status for row in rows} == {Status.OK}
    ours = [row for row in rows if row.config.kernel == "matmul_activation"]
    assert all(row.problem.fusion == ACTIVATIONS[activation] for row in ours)
    if not ours:
        return  # No call was expected to save anything.
    races.clear()
    (again,) = confirmed(model(activation, bias), *inputs)
    assert again["config"] == product["config"]
    assert activation not in [name for name, _ in races]
