"""cuBLASLt's algorithms for fp8 operands with scales: in compiled programs, builds, and the search of a compile."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.gpu import anew, close, compiled, rand, served, solved

import gemmdb.inductor
from gemmdb import Config, Policy, Problem
from gemmdb.cublaslt import launch, library
from gemmdb.devices import detect
from gemmdb.generators.build.build import BuildRequest, build
from gemmdb.kernels.config import ATEN
from gemmdb.kernels.hardware import FIRST_FP8, HOPPER
from gemmdb.settings import Settings
from gemmdb.table.measurement import Status
from gemmdb.table.reader import Table

MULTIPLIED = torch.cuda.is_available() and torch.cuda.get_device_capability() >= divmod(FIRST_FP8, 10)
pytestmark = [
    pytest.mark.timeout(300), pytest.mark.usefixtures("clean", "cublaslt"),
    pytest.mark.skipif(not MULTIPLIED, reason="this GPU cannot multiply fp8"),
]  # fmt: skip
M, N, K = 96, 512, 2048
FP8, BF16 = torch.float8_e4m3fn, torch.bfloat16


def gemm(m: int = M, n: int = N, k: int = K, **rest: Any) -> Problem:
    return Problem.gemm("scaled_mm", m=m, n=n, k=k, **rest)


PROBLEMS = [
    gemm(),
    gemm(m=1, fast_accum=True),
    gemm(m=17, k=528, n=1040, fast_accum=True, out_dtype="fp32"),
    gemm(weight_dtype="fp8_e5m2", out_dtype="fp16", bias="1d"),
    gemm(dtype="fp8_e5m2", weight_dtype="fp8_e4m3", bias="1d", fast_accum=True),
    gemm(fusion="pointwise:math"),
    gemm(scales="row"),
    gemm(scales="row", fast_accum=True, bias="1d", m=1000),
    gemm(scales="row", out_dtype="fp32", m=1),
    gemm(scales="row", out_dtype="fp16", bias="1d", fusion="pointwise"),
    gemm(scales="block"),
    gemm(scales="block", n=576, bias="1d"),
    gemm(scales="block", m=4, out_dtype="fp32"),
]


@functools.cache
def proposed(problem: Problem) -> tuple[Config, ...]:
    from gemmdb.generators.measure.cuda import cublaslt

    return tuple(cublaslt.proposed(problem, 64))


def first(problem: Problem) -> Config:
    """The first algorithm of cuBLASLt's heuristic that does not split K, else the first."""
    found = proposed(problem)
    if not found:
        pytest.skip(f"cuBLASLt {library.version()} has no algorithm for {problem.text}")
    return next((one for one in found if one.values["split_k"] == 1), found[0])


def fp8(*sizes: int) -> Any:
    return rand(*sizes).to(FP8)


def scales(*sizes: int) -> Any:
    return torch.rand(*sizes, device="cuda") + 0.5


def by_rows(x: Any, w: Any, s: Any, t: Any) -> Any:
    return torch._scaled_mm(x, w.t(), s, t, out_dtype=BF16, use_fast_accum=True)


@pytest.fixture(autouse=True)
def nothing_fell_back(caplog: pytest.LogCaptureFixture) -> Any:
    yield
    assert not [one for one in caplog.get_records("call") if "compiled for cuBLASLt" in one.getMessage()]


def test_a_hopper_has_all_kinds_of_scales() -> None:
    if detect.cuda().capability != HOPPER or library.version() < 120_900:  # type: ignore[union-attr]
        pytest.skip("asks for a Hopper and cuBLAS 12.9")
    for problem in PROBLEMS:
        print(len(proposed(problem)), problem.text)
    assert all(map(proposed, PROBLEMS))


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: re.sub(r".*?(m=\d+)", r"\1", problem.text)[:150])
def test_every_kind_of_scales(problem: Problem) -> None:
    first(problem)
    for config in proposed(problem)[:3]:
        anew()
        _, code = solved(problem, config)
        assert served() == [config.text]
        assert "gemmdb_cublaslt.prepare(torch._scaled_mm" in code


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("kind", ["tensor", "row"])
def test_without_a_split_the_bits_are_aten_s(kind: str, fast: bool) -> None:
    x, w = fp8(M, K), fp8(N, K)
    s, t = (scales(1), scales(1)) if kind == "tensor" else (scales(M, 1), scales(1, N))

    def model(x: Any, w: Any, s: Any, t: Any) -> Any:
        return torch._scaled_mm(x, w.t(), s, t, out_dtype=BF16, use_fast_accum=fast)

    config = first(gemm(scales=kind, fast_accum=fast))
    if config.values["split_k"] != 1:
        pytest.skip("every algorithm splits K")
    found, _ = compiled(model, x, w, s, t, config=config)
    assert torch.equal(found, model(x, w, s, t))


def test_scales_that_are_computed_and_moved() -> None:
    x, w, t = fp8(M, K), fp8(N, K), scales(1, N)

    def model(x: Any, w: Any, s: Any, t: Any) -> Any:
        return by_rows(x, w, s * 2, t), torch._scaled_mm(x, w.t(), s[0], t[0, :1] * 3, out_dtype=BF16)

    anew()
    run = torch.compile(model)
    with torch.no_grad(), gemmdb.inductor.force(first, "test"):
        for _ in range(2 * launch.MAX_OPERATIONS):
            s = scales(M, 1)
            for one, wanted in zip(run(x, w, s, t), model(x, w, s, t), strict=True):
                close(one, wanted)
    assert [text.partition(" ")[0] for text in served()] == ["cublaslt:matmul"] * 2


@pytest.mark.parametrize("mode", ["capture", "reduce-overhead"])
def test_graphs_read_new_scales(mode: str) -> None:
    x, w, s, t = fp8(M, K), fp8(N, K), scales(M, 1), scales(1, N)
    anew()
    how = {} if mode == "capture" else {"mode": mode}
    run = torch.compile(by_rows, **how)
    with torch.no_grad(), gemmdb.inductor.force(first(gemm(scales="row", fast_accum=True))):
        close(run(x, w, s, t), by_rows(x, w, s, t))
    if mode == "capture":
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            found = run(x, w, s, t)
        for _ in range(3):
            s.copy_(scales(M, 1))
            graph.replay()
            close(found, by_rows(x, w, s, t))
    else:
        for _ in range(5):
            torch.compiler.cudagraph_mark_step_begin()
            s = scales(M, 1)
            close(run(x, w, s, t), by_rows(x, w, s, t))
    assert served() == [first(gemm(scales="row", fast_accum=True)).text]


def test_cpp_wrapper() -> None:
    x, w, b, s, t = fp8(M, K), fp8(N, K), rand(N + 8), scales(M, 1), scales(1, N)

    def model(x: Any, w: Any, b: Any, s: Any, t: Any) -> Any:
        one = torch._scaled_mm(x, w.t(), s[0], t[0, 0], out_dtype=torch.float32)
        return one, torch._scaled_mm(x, w.t(), s * 2, t, b[8:], out_dtype=BF16, use_fast_accum=True)

    from torch._inductor.utils import run_and_get_code

    anew()
    with torch.no_grad(), gemmdb.inductor.force(first, "test"):
        found, codes = run_and_get_code(torch.compile(model, options={"cpp_wrapper": True}), x, w, b, s, t)
    assert "struct Library {" in codes[0]
    assert all(text.startswith("cublaslt:matmul") for text in served()), gemmdb.inductor.stats()["products"]
    for one, wanted in zip(found, model(x, w, b, s, t), strict=True):
        close(one, wanted)


def test_scales_that_start_anywhere_are_for_aten() -> None:
    """cuBLASLt reads them from multiples of 16 bytes. ATen asks the same library, which refuses them, too, in eager and
    in default mode."""
    x, w = fp8(M, K), fp8(N, K)
    for kind, one, other in (("tensor", scales(2)[1], scales(2)[1]), ("row", scales(M + 1, 1)[1:], scales(1, N))):
        config = first(gemm(scales=kind, fast_accum=True))
        with contextlib.suppress(RuntimeError):
            found, _ = compiled(by_rows, x, w, one, other, config=config)
            close(found, by_rows(x, w, one, other))
        assert not any(text.startswith("cublaslt") for text in served())
        anew()


@pytest.fixture
def searched(kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A function that compiles a model as a new process would, with the user's table alone. Returns gemmdb's stats."""
    from gemmdb.inductor.benchmark import algorithms
    from gemmdb.inductor.benchmark.limits import BUDGET

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr("gemmdb.table.catalog.shipped_tables", lambda: tmp_path / "none")
    policy = Policy(
        on_miss="aten", confirm=True, confirm_s=60.0, near=False, sku=False, model=False, horizontal=False
    )  # fmt: skip

    def run(model: Callable[..., Any], *inputs: Any) -> Any:
        anew()
        algorithms._KNOWN.clear()
        BUDGET.clear()
        gemmdb.inductor.enable(policy=policy)
        with torch.no_grad():
            close(torch.compile(model)(*inputs), model(*inputs))
        stats = gemmdb.inductor.stats()
        assert stats["errors"] == []
        return stats

    return run


@pytest.mark.parametrize("kind", ["tensor", "row", "block"])
def test_a_compile_searches_algorithms(searched: Any, kind: str) -> None:
    m, n, k = 256, 3072, 2048
    x, w = fp8(m, k), fp8(n, k)
    s, t = {
        "tensor": lambda: (scales(1), scales(1)),
        "row": lambda: (scales(m, 1), scales(1, n)),
        "block": lambda: (scales(k // 128, m).t(), scales(n // 128, k // 128).t()),
    }[kind]()

    def model(x: Any, w: Any, s: Any, t: Any) -> Any:
        return torch._scaled_mm(x, w.t(), s, t, out_dtype=BF16)

    stats = searched(model, x, w, s, t)
    with Table.open(Settings.read().user_table) as table:
        rows = list(table.measurements())
    assert {row.status for row in rows} == {Status.OK}
    assert {row.config.name for row in rows} == {"aten:default", "cublaslt:matmul"}
    assert {row.problem.scales for row in rows} == {kind}
    us = {row.config.text: row.times.median_us for row in rows if row.times}
    print(kind, f"{stats['seconds']['trial']:.3f} s", us)
    again = searched(model, x, w, s, t)
    assert (again["rungs"], again["products"][0]["config"]) == ({"exact": 1}, stats["products"][0]["config"])


def test_a_build_times_algorithms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gemmdb.generators.measure.cuda.backend import CudaBackend

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    problems = [
        gemm(m=256, n=3072, fast_accum=True), gemm(m=64, scales="row", bias="1d"), gemm(m=64, scales="block")
    ]  # fmt: skip
    shapes = tmp_path / "shapes.jsonl"
    shapes.write_text("".join(f'{{"problem": "{problem.text}"}}\n' for problem in problems))
    backend = CudaBackend()
    request = BuildRequest(shapes=str(shapes), effort="quick", out=tmp_path / "gpu.db", gpus=1, allow="cublaslt")
    try:
        report = build(request, backend=backend)
    finally:
        backend.close()
    assert (report.measured, report.left) == (3, 0)
    with Table.open(report.out) as table:
        for problem in problems:
            found = [row for row in table.rows(problem, backend.device) if row.config != ATEN]
            us = sorted((row.times.median_us, row.config.text) for row in found if row.times)
            assert us, [(row.config.text, row.status, row.detail) for row in found]
            assert not [row for row in found if row.status in (Status.WRONG, Status.CRASH)]
            verdict = table.verdict(problem, backend.device)
            print(problem.text, verdict and (verdict.pick.text, verdict.speedup), us[:3])
