"""What a GPU would be handed where sizes and strides are symbolic, come out of data, or may be zero."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.for_a_gpu import CUTLASS, NARROW, PERSISTENT, TILE, TMA, asked, ints, linear, rand
from kit.gpu import make

import gemmdb.inductor
from gemmdb import Config, Policy

DENSE_OFFSETS = pytest.mark.skipif(torch.__version__ >= "2.14", reason="torch refuses strided offsets from 2.14 on")


@pytest.mark.parametrize(("config", "reason"), [(NARROW, "no bound"), (CUTLASS, "depends on N and K")])
def test_a_symbolic_n_of_an_int8_weight_has_a_range(config: Config, reason: str, reached: list[str]) -> None:
    w, s = ints(1024, 512), torch.rand(1024).bfloat16()
    torch._dynamo.mark_dynamic(w, 0)
    torch._dynamo.mark_dynamic(s, 0)
    product = asked(lambda x, w, s: linear(x, w.to(x.dtype)) * s, rand(16, 512), w, s, config=config)
    assert product["ranges"] == {"n": [2, None]}
    assert reason in product["note"]
    assert reached == []


@pytest.mark.parametrize("config", [TMA, PERSISTENT], ids=lambda config: config.name)
def test_a_symbolic_stride_has_no_tensor_map(config: Config, reached: list[str]) -> None:
    """The width that a graph is compiled with may be a multiple of 16 bytes where a later one is not."""

    def left(base: Any, other: Any) -> Any:
        return base[:, :256] @ other.t()

    def right(base: Any, other: Any) -> Any:
        return other @ base[:, :256].t()

    narrow, w = rand(48, 264), rand(512, 256)
    torch._dynamo.mark_dynamic(narrow, 1, min=257, max=4096)
    for model in (left, right):
        assert "row stride of an operand is symbolic" in asked(model, narrow, w, config=config)["note"]
    assert reached == []
    run = torch.compile(lambda x: x @ w.t())
    torch._dynamo.reset()
    with gemmdb.inductor.force(config):
        for width in (264, 272, 259):
            x = rand(48, width)[:, :256]
            assert (run(x).double() - (x @ w.t()).double()).abs().max() <= 1
    assert reached == [config.kernel]
    # A symbol times a multiple of 16 bytes is a multiple.
    blocks = rand(48, 33, 8)
    torch._dynamo.mark_dynamic(blocks, 1, min=33, max=64)
    asked(lambda x, w: x.view(48, -1)[:, :256] @ w.t(), blocks, w, config=config)
    assert reached == [config.kernel] * 2


@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize("config", [TILE, NARROW, TMA, PERSISTENT, CUTLASS], ids=lambda config: config.text[:40])
def test_rows_that_come_out_of_data_need_a_bound(config: Config, bounded: bool, reached: list[str]) -> None:
    """Nothing can be guarded, so offsets of 32 bits, and a workspace, must be enough by what is known."""
    w = rand(512, 256)

    def chosen(x: Any, which: Any) -> Any:
        return x[which] @ w.t()

    def repeated(x: Any, which: Any) -> Any:
        rows = which.sum().item()
        torch._check(rows >= 1)
        return x[:1].repeat(rows, 1) @ w.t()

    def at_least_one(x: Any, which: Any) -> Any:
        x = x[which]
        torch._check(x.shape[0] >= 1)
        return x @ w.t()

    bound = at_least_one if config is CUTLASS else chosen
    which = torch.arange(200) % 3 == 0
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        product = asked(bound if bounded else repeated, rand(200, 256), which, config=config)
    if bounded or config is CUTLASS:  # Its offsets have 64 bits.
        assert (product["note"], len(reached)) == ("that far", 1)
        return
    reason = "no bound" if config is NARROW else "offsets are 32 bits wide, and data-dependent sizes have no bound"
    assert reason in product["note"]
    assert reached == []


@pytest.mark.parametrize(("config", "reason"), [(TILE, "K may be 0"), (CUTLASS, "size zero")], ids=["k", "m"])
def test_sizes_that_may_be_zero(config: Config, reason: str, reached: list[str]) -> None:
    def model(x: Any, which: Any) -> Any:
        x = x[which]
        return x.t() @ x if config is TILE else x @ torch.ones(256, 64).bfloat16()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        product = asked(model, rand(200, 256), torch.arange(200) < 40, config=config)
    assert reason in product["note"]
    assert reached == []


@pytest.mark.skipif(torch.__version__ < "2.12", reason="a CPU multiplies fp8 with row scales from torch 2.12 on")
def test_a_range_of_an_fp8_gemm_is_divided(reached: list[str]) -> None:
    """The shipped table of the H200 has other winners at more rows."""

    def fp8(rows: int) -> Any:
        return torch.randn(rows, 4096).to(torch.float8_e4m3fn)

    def model(a: Any, b: Any, one: Any, other: Any) -> Any:
        return torch._scaled_mm(a, b.t(), one, other, out_dtype=torch.bfloat16, use_fast_accum=True)

    inputs = fp8(16), fp8(4096), torch.rand(16, 1), torch.rand(1, 4096)
    for tensor in (inputs[0], inputs[2]):
        torch._dynamo.mark_dynamic(tensor, 0, min=2, max=48)
    torch._dynamo.reset()
    gemmdb.inductor.reset_stats()
    gemmdb.inductor.enable(tables=[], policy=Policy(confirm=False))  # There is no GPU to time on.
    try:
        found, wanted = torch.compile(model)(*inputs), model(*inputs)
    finally:
        gemmdb.inductor.disable()
    assert (found.double() - wanted.double()).abs().max() <= 0.02 * wanted.double().abs().max()
    (product,) = gemmdb.inductor.stats()["products"]
    assert gemmdb.inductor.stats()["errors"] == []
    assert product["note"].startswith("m from ")
    assert product["note"].endswith(": that far")
    assert {*reached} == {"narrow"}


def test_a_symbolic_stride_is_read_by_pointers(reached: list[str]) -> None:
    narrow, w = rand(48, 264), rand(512, 256)
    torch._dynamo.mark_dynamic(narrow, 1, min=257, max=4096)
    asked(lambda x, w: x[:, :256] @ w.t(), narrow, w, config=TILE)
    assert reached == ["tile"]


@pytest.mark.parametrize("load", ["pointer", "tma"])
def test_experts_take_any_number_of_rows(load: str, reached: list[str]) -> None:
    """Rows of all experts are tokens times experts per token."""
    x, w, ends = rand(24, 256), rand(4, 512, 256), torch.tensor([3, 3, 9, 24], dtype=torch.int32)
    torch._dynamo.mark_dynamic(x, 0)
    config = make("grouped", load=load)
    product = asked(lambda x, w, o: torch._grouped_mm(x, w.mT, offs=o), x, w, ends, config=config)
    assert (product["ranges"], product["note"]) == ({"m": [2, None]}, "that far")
    assert reached == ["grouped"]


@pytest.fixture
def scaled_groups() -> Iterator[None]:
    """`_scaled_grouped_mm` on a CPU, where torch has none."""

    def multiply(a: Any, b: Any, scale_a: Any, scale_b: Any, offs: Any = None, *rest: Any) -> Any:
        found, start = torch.zeros(len(a), b.shape[2]), 0
        for group, end in enumerate(offs.tolist()):
            rows = slice(start, end)
            found[rows] = (a[rows].float() @ b[group].float()) * scale_a[rows, None] * scale_b[group]
            start = end
        return found.bfloat16()

    library = torch.library.Library("aten", "IMPL")
    library.impl("_scaled_grouped_mm", multiply, "CPU")
    yield
    library._destroy()


@pytest.mark.usefixtures("scaled_groups")
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("load", ["pointer", "tma"])
def test_experts_of_fp8_take_any_number_of_rows(load: str, symbolic: bool, reached: list[str]) -> None:
    fp8 = torch.float8_e4m3fn
    x, w, scale_a, scale_b = rand(24, 256).to(fp8), rand(4, 512, 256).to(fp8), torch.rand(24), torch.rand(4, 512)
    for tensor in (x, scale_a) if symbolic else ():
        torch._dynamo.mark_dynamic(tensor, 0)

    def model(x: Any, w: Any, a: Any, b: Any, o: Any) -> Any:
        return torch._scaled_grouped_mm(x, w.mT, a, b, offs=o, use_fast_accum=True)

    ends = torch.tensor([3, 3, 9, 24], dtype=torch.int32)
    product = asked(model, x, w, scale_a, scale_b, ends, config=make("grouped", load=load))
    assert (product["ranges"], product["note"]) == ({"m": [2, None]} if symbolic else {}, "that far")
    assert " scales=row fast=1 groups=4 ragged=m" in product["problem"]
    assert reached == ["grouped"]


@pytest.mark.parametrize("ends", ["dense", pytest.param("strided", marks=DENSE_OFFSETS), "computed"])
def test_offsets_are_a_dense_vector(ends: str, reached: list[str]) -> None:
    """Inductor copies others, also for ATen."""
    x, w = rand(24, 256), rand(4, 512, 256)

    def model(x: Any, w: Any, o: Any) -> Any:
        return torch._grouped_mm(x, w.mT, offs={"dense": o[4:], "strided": o[::2], "computed": o[:4] * 3}[ends])

    given = torch.tensor([1, 2, 3, 8, 3, 3, 9, 24], dtype=torch.int32)
    given = torch.tensor([3, 0, 3, 0, 9, 0, 24, 0], dtype=torch.int32) if ends == "strided" else given
    assert asked(model, x, w, given, config=make("grouped"))["note"] == "that far"
    assert reached == ["grouped"]
