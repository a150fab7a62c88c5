"""Our Triton kernels within whole compiles: served from a table, sharing a workspace, in backward, without a copy."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gemmdb.inductor
from gemmdb import Config, Problem

pytestmark = pytest.mark.usefixtures("clean")
BF16 = torch.bfloat16
COUNTING: list[tuple[str, dict[str, str | int]]] = [
    ("tile", {"split_k": 3, "reduce": "fixup"}),
    ("narrow", {"split_k": 2}),
]


def test_the_dequantised_weight_never_reaches_memory(make: Any) -> None:
    problem = Problem.gemm("mixed_mm", m=8, n=8192, k=8192, fusion="scale")
    from gemmdb.generators.measure.operands import operands
    from gemmdb.generators.measure.program import Product

    product = Product(problem, operands(problem, torch.device("cuda"), 1))
    with gemmdb.inductor.force(make("narrow", dequant="bits", block_n=128, block_k=128)):
        compiled = torch.compile(product)
        compiled(*product.inputs)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        compiled(*product.inputs)
        taken = torch.cuda.max_memory_allocated() - before
    assert taken < 2**20, taken


@pytest.mark.parametrize("config", COUNTING, ids=str, indirect=True)
def test_kernels_share_a_workspace(config: Config) -> None:
    """Each leaves its counters at zero for the next, also when the graph is replayed."""
    x, w = torch.randn(16, 512, device="cuda", dtype=BF16), torch.randn(1024, 512, device="cuda", dtype=BF16) / 16
    v = torch.randn(1024, 2048, device="cuda", dtype=BF16) / 32

    def model(x: Any, w: Any, v: Any) -> Any:
        return torch.relu(x @ w.t()) @ v

    with gemmdb.inductor.force(config):
        compiled = torch.compile(model)
        compiled(x, w, v)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = compiled(x, w, v)
    for _ in range(20):
        x.normal_()
        found.fill_(torch.nan)
        graph.replay()
        wanted = model(x.double(), w.double(), v.double())
        assert (found.double() - wanted).abs().max() <= 0.02 * wanted.abs().max()


def test_strict_mode_serves_a_table(kit: Any, make: Any, tmp_path: Path) -> None:
    from torch._inductor.utils import run_and_get_code

    second = make("tile", block_n=32)
    times = {make("tile", load="tma"): 40.0, second: 50.0}
    made = kit.table(tmp_path / "table.db", {Problem.gemm("mm", m=1, n=512, k=768): times})
    x, w = torch.randn(1, 768, device="cuda", dtype=BF16), torch.randn(512, 768, device="cuda", dtype=BF16)
    options = {"gemmdb.on_miss": "error", "gemmdb.tables": [made]}
    compiled = torch.compile(lambda x, w: x @ w.t(), backend="gemmdb", options=options)
    found, codes = run_and_get_code(compiled, x, w)
    wanted = x.double() @ w.double().t()
    assert (found.double() - wanted).abs().max() <= 0.01 * wanted.abs().max()
    (entry,) = gemmdb.inductor.stats()["products"]
    # The fastest cannot be lowered for a single row; the next best is served.
    assert (entry["rung"], entry["config"]) == ("exact", second.text)
    assert "tl.dot(a, b, acc)" in codes[0]


def test_gradients(make: Any) -> None:
    x = torch.randn(48, 256, device="cuda", dtype=BF16, requires_grad=True)
    w = (torch.randn(512, 256, device="cuda", dtype=BF16) / 16).requires_grad_()
    config = make("tile")
    with gemmdb.inductor.force(config):
        torch.compile(lambda x, w: torch.relu(x @ w.t()))(x, w).sum().backward()
    found = x.grad, w.grad
    assert {entry["config"] for entry in gemmdb.inductor.stats()["products"]} == {config.text}
    wanted = torch.autograd.grad(torch.relu(x.double() @ w.double().t()).sum(), (x, w))
    for one, other in zip(found, wanted, strict=True):
        assert (one.double() - other.double()).abs().max() <= 0.03 * other.abs().max()


def test_where_aten_is_the_best_it_is_the_cast_and_the_gemm(kit: Any) -> None:
    """And not `_weight_int8pack_mm`, which Inductor's own pattern makes of this spelling, and which is far slower."""
    x, w = kit.rand(16, 512), kit.ints(256, 512)
    scale = kit.rand(256).abs() / 64

    def model(x: Any, w: Any, scale: Any) -> Any:
        return torch.nn.functional.linear(x, w.to(x.dtype)) * scale

    found, code = kit.compiled(model, x, w, scale, config=Config.of("aten", "default"))
    assert kit.served() == ["aten:default"]
    assert "_weight_int8pack_mm" not in code
    assert "extern_kernels.mm(" in code
    kit.close(found, (x.double() @ w.double().t()) * scale.double())
