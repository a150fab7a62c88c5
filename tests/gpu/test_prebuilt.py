"""CUTLASS kernels that are compiled in advance, on a GPU: right without nvcc, in graphs and in packages."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gemmdb.inductor
from benchmarks.torch.prebuilt import chosen
from gemmdb import Problem
from gemmdb.kernels import cutlass
from gemmdb.kernels.cutlass import prebuilt

pytestmark = pytest.mark.skipif(prebuilt.archive() is None, reason="no kernels are compiled in advance")


@pytest.fixture(autouse=True)
def without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No nvcc and no headers, and an Inductor cache of its own."""
    monkeypatch.setattr(cutlass, "headers", lambda: None)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDACXX", raising=False)


PROBLEMS = chosen(24, 7) if torch.cuda.is_available() and prebuilt.archive() else []


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.text[:70])
def test_a_verdict_is_served_from_the_archive(problem: Problem, clean: None) -> None:
    from gemmdb.generators.measure.correctness import poison, reference
    from gemmdb.generators.measure.operands import operands
    from gemmdb.generators.measure.program import Product, set_numerics
    from gemmdb.generators.measure.tolerance import tolerance

    set_numerics(problem)
    made = operands(problem, torch.device("cuda"), 1)
    product = Product(problem, made)
    poison(problem, torch.device("cuda"))
    with torch.no_grad():
        run = torch.compile(product, backend="gemmdb")
        results = [run(*product.inputs) for _ in range(3)]
    (entry,) = gemmdb.inductor.stats()["products"]
    assert entry["config"].startswith("cutlass:gemm"), entry
    assert gemmdb.inductor.stats()["errors"] == []
    errors = [reference(problem, made).error(one) for one in results]
    assert max(errors) <= tolerance(problem), errors


def quantised(x: Any, rows: Any, w: Any, columns: Any) -> Any:
    """A linear layer as torchao's dynamic int8 writes it."""
    return ((torch._int_mm(x, w.t()) * rows) * columns).to(torch.bfloat16)


def test_scales_of_rows_and_columns_in_fp32(clean: None) -> None:
    x = torch.randint(-128, 128, (512, 4096), device="cuda", dtype=torch.int8)
    w = torch.randint(-128, 128, (4096, 4096), device="cuda", dtype=torch.int8)
    rows, columns = torch.rand(512, 1, device="cuda") / 1e3, torch.rand(4096, device="cuda") / 1e3
    wanted = (x.double() @ w.double().t()) * rows * columns
    found = torch.compile(quantised, backend="gemmdb")(x, rows, w, columns)
    (entry,) = gemmdb.inductor.stats()["products"]
    assert entry["config"].startswith("cutlass:gemm"), entry
    assert (found.double() - wanted).abs().max() <= 0.01 * wanted.abs().max()
