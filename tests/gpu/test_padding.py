"""Products with misaligned rows: padded as a candidate, and by no benchmark of Inductor's where a table answers."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.gpu import measure

import gemmdb.inductor
from gemmdb import Config, Problem
from gemmdb.kernels.aten import padded_sizes
from gemmdb.kernels.config import ATEN
from gemmdb.kernels.default_mode import returns_view

gemm = Problem.gemm


def padded(multiple: int) -> Config:
    return Config.of("aten", "padded", multiple=multiple)


def view(multiple: int) -> Config:
    """As Inductor's own pass pads."""
    return Config.of("aten", "padded", multiple=multiple, output="view")


@pytest.fixture(autouse=True)
def pads(clean: None) -> Iterator[None]:
    """Inductor pads as it does by default. It remembers on disk what it benchmarked; a size of its own keeps each test
    from what another left."""
    import torch._inductor.config as inductor

    with inductor.patch(shape_padding=True):
        yield


CASES = [
    *((gemm("mm", m=65, n=1001, k=523, layout=layout), padded(8)) for layout in ("nt", "nn", "tn", "tt")),
    *((gemm("addmm", m=65, n=n, k=523, bias=bias), padded(64)) for n in (1001, 1024)
      for bias in ("1d", "full", "column")),
    (gemm("mm", m=65, n=1001, k=520, dtype="fp16", fusion="pointwise"), padded(8)),
    (gemm("mm", m=65, n=1001, k=523, dtype="fp32", tf32=True), padded(8)),
    (gemm("int_mm", m=72, n=1000, k=520), padded(16)),
    (gemm("int_mm", m=72, n=1000, k=520, fusion="scale"), padded(16)),
    *((gemm("mm", m=65, n=1001, k=523, layout=layout), view(8)) for layout in ("nt", "nn", "tn", "tt")),
    *((gemm("addmm", m=65, n=1001, k=523, bias=bias), view(8)) for bias in ("1d", "full", "column")),
    (gemm("mm", m=65, n=1001, k=523, dtype="fp32"), view(4)),
]  # fmt: skip


@pytest.mark.parametrize(("problem", "config"), CASES, ids=str)
def test_padding_is_measured(problem: Problem, config: Config) -> None:
    from gemmdb.generators.measure.cuda.artifacts import Emission

    assert Emission(problem, config).build(90).failure == ""
    measure(problem, [config])


@pytest.mark.parametrize(("problem", "config"), CASES, ids=str)
def test_padding_is_served(problem: Problem, config: Config) -> None:
    from gemmdb.generators.measure.correctness import poison, reference
    from gemmdb.generators.measure.operands import operands
    from gemmdb.generators.measure.program import Product, set_numerics
    from gemmdb.generators.measure.tolerance import tolerance

    set_numerics(problem)
    device = torch.device("cuda")
    made = operands(problem, device, 1)
    product = Product(problem, made)
    poison(problem, device)
    with gemmdb.inductor.force(config):
        result = torch.compile(product)(*product.inputs)
    torch.set_float32_matmul_precision("highest")
    stats = gemmdb.inductor.stats()
    assert [entry["config"] for entry in stats["products"]] == [config.text], stats["products"]
    assert (stats["benchmarked"], stats["errors"]) == (0, [])
    row = padded_sizes(problem, int(config.values["multiple"]))[1] if returns_view(config) else problem.n
    assert result.stride() == (row, 1)
    assert reference(problem, made).error(result) <= tolerance(problem)


@pytest.mark.parametrize("op", ["mm", "addmm"])
@pytest.mark.parametrize(("m", "n", "k"), [(64, 1001, 523), (65, 1001, 520), (65, 1008, 523)])
def test_the_view_is_what_inductors_own_pass_emits(op: str, m: int, n: int, k: int) -> None:
    import torch._inductor.config as inductor
    from torch._inductor.utils import run_and_get_code

    x, w, b = (torch.randn(*sizes, device="cuda", dtype=torch.bfloat16) for sizes in ((m, k), (n, k), (n,)))

    def model(x: Any, w: Any, b: Any) -> Any:
        return torch.addmm(b, x, w.t()) if op == "addmm" else torch.mm(x, w.t())

    def compiled() -> tuple[Any, list[list[int]], int]:
        """The result, the sizes of all buffers in any order, and the number of Triton kernels."""
        torch._dynamo.reset()
        found, code = run_and_get_code(torch.compile(model), x, w, b)
        text = "".join(code).partition("async_compile.wait")[2]
        buffers = re.findall(r" = empty_strided_cuda\(\((.*?)\)", text)
        return found, sorted(sorted(map(int, re.findall(r"\d+", sizes))) for sizes in buffers), text.count(".run(")

    with inductor.patch(force_shape_pad=True):
        theirs, *their_code = compiled()
    with gemmdb.inductor.force(view(8)):
        ours, *our_code = compiled()
    assert our_code == their_code
    assert ours.stride() == theirs.stride()
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize(("config", "size"), [(padded(8), 4097), (ATEN, 4099), (None, 4101)], ids=str)
def test_inductor_pads_by_a_benchmark_only_what_nobody_answers(config: Config | None, size: int) -> None:
    x, w = (torch.randn(2048, size, device="cuda", dtype=torch.bfloat16) for _ in "ab")

    def model(x: Any, w: Any) -> Any:
        return x @ w.t()

    if config is None:
        with gemmdb.inductor.force(lambda problem: None):
            torch.compile(model)(x, w)
        assert gemmdb.inductor.stats()["benchmarked"] > 0, "it benchmarks, so the others could have seen it"
        return
    with gemmdb.inductor.force(config):
        found = torch.compile(model)(x, w)
    stats = gemmdb.inductor.stats()
    assert stats["benchmarked"] == 0
    assert [entry["config"] for entry in stats["products"]] == [config.text]
    wanted = x.double() @ w.double().t()
    assert (found.double() - wanted).abs().max() <= 0.01 * wanted.abs().max()
