"""Symbolic sizes on our kernels: one compile, right for every size of its range, and divided among kernels by M."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.sessions import FakeSession

import gemmdb.inductor
from gemmdb import Config
from gemmdb.hit import Hit
from gemmdb.inductor.entry import active, enable
from gemmdb.kernels.config import ATEN
from gemmdb.settings import Policy

Variant = tuple[str, dict[str, str | int]]
OPEN: list[Variant] = [
    ("tile", {}),
    ("tile", {"swap": 1}),
    ("tile", {"load": "tma"}),
    ("tile", {"split_k": 3, "reduce": "kernel"}),
    ("narrow", {}),
    ("persistent", {}),
]
BOUNDED: list[Variant] = [("tile", {"split_k": 3, "reduce": "fixup"}), ("narrow", {"split_k": 2})]
SIZES = (2, 15, 16, 17, 64, 129, 1000)
CHOSEN = (0, 1, *SIZES)
"""Numbers of rows that a mask chooses: only what comes out of data may be 0 or 1 without another compile."""


@pytest.fixture(autouse=True)
def installed(clean: None) -> None:
    """`active.use` does not put gemmdb into Inductor, as `force` does."""
    enable.install()


def alone(config: Config) -> None:
    (product,) = gemmdb.inductor.stats()["products"]
    assert (product["config"], product["note"]) == (config.text, "")
    assert gemmdb.inductor.stats()["benchmarked"] == 0


def dynamic(kit: Any, model: Callable[..., Any], config: Config, make: Callable[[int], Any], **bounds: int) -> None:
    """Compile `model` once, for the first of SIZES rows that is marked, and check every other."""
    with gemmdb.inductor.force(config):
        run = torch.compile(model)
        for m in (64, *SIZES):
            x = make(m)
            torch._dynamo.mark_dynamic(x, x.dim() - 2, **bounds)
            kit.close(run(x), model(x.double()))
    alone(config)


@pytest.mark.parametrize("config", OPEN, ids=str, indirect=True)
def test_any_number_of_rows(kit: Any, config: Config) -> None:
    w = kit.rand(1024, 512) / 16
    dynamic(kit, lambda x: torch.relu(x @ w.t().to(x.dtype)), config, lambda m: kit.rand(m, 512))


@pytest.mark.parametrize("config", BOUNDED, ids=str, indirect=True)
def test_kernels_that_count_arrivals_need_a_bound(kit: Any, config: Config) -> None:
    w = kit.rand(1024, 512) / 16
    dynamic(kit, lambda x: torch.relu(x @ w.t().to(x.dtype)), config, lambda m: kit.rand(m, 512), min=2, max=1024)
    kit.anew()
    with gemmdb.inductor.force(config):
        x = kit.rand(64, 512)
        torch._dynamo.mark_dynamic(x, 0)
        kit.close(torch.compile(lambda x: x @ w.t())(x), x.double() @ w.double().t())
    (product,) = gemmdb.inductor.stats()["products"]
    assert product["config"] == ATEN.text
    assert "no bound" in product["note"]


@pytest.mark.parametrize("config", OPEN, ids=str, indirect=True)
def test_addmm_and_three_dimensions(kit: Any, config: Config) -> None:
    w, b = kit.rand(1024, 512) / 16, kit.rand(1024)

    def linear(x: Any) -> Any:
        return torch.nn.functional.linear(x, w.to(x.dtype), b.to(x.dtype))

    dynamic(kit, linear, config, lambda m: kit.rand(2, m, 512))


@pytest.mark.parametrize("config", OPEN, ids=str, indirect=True)
def test_int8_weights(kit: Any, config: Config) -> None:
    w, s = kit.ints(1024, 512), torch.rand(1024, device="cuda", dtype=torch.bfloat16) / 64
    with gemmdb.inductor.force(config):
        run = torch.compile(lambda x: torch.nn.functional.linear(x, w.to(x.dtype)) * s)
        for m in (64, *SIZES):
            x = kit.rand(m, 512)
            torch._dynamo.mark_dynamic(x, 0)
            kit.close(run(x), x.double() @ w.double().t() * s.double())
    alone(config)


@pytest.mark.parametrize("config", [OPEN[0], OPEN[4]], ids=str, indirect=True)
def test_all_three_sizes(kit: Any, config: Config) -> None:
    with gemmdb.inductor.force(config):
        run = torch.compile(torch.mm)
        for m, n, k in ((64, 256, 512), (2, 30, 777), (130, 1001, 96), (1000, 8, 8)):
            a, b = kit.rand(m, k), kit.rand(k, n)
            for tensor in (a, b):
                torch._dynamo.mark_dynamic(tensor, [0, 1])
            kit.close(run(a, b), a.double() @ b.double())
    alone(config)


@pytest.mark.parametrize("config", OPEN, ids=str, indirect=True)
def test_any_number_of_columns_of_an_int8_weight(kit: Any, config: Config) -> None:
    with gemmdb.inductor.force(config):
        run = torch.compile(lambda x, w, s: torch.nn.functional.linear(x, w.to(x.dtype)) * s)
        x = kit.rand(48, 512)
        for n in (256, 2, 30, 1001, 4096):
            w, s = kit.ints(n, 512), torch.rand(n, device="cuda", dtype=torch.bfloat16) / 64
            for tensor in (w, s):
                torch._dynamo.mark_dynamic(tensor, 0)
            kit.close(run(x, w, s), x.double() @ w.double().t() * s.double())
    alone(config)
    (product,) = gemmdb.inductor.stats()["products"]
    assert product["ranges"] == {"n": [2, None]}


@pytest.mark.parametrize("config", BOUNDED, ids=str, indirect=True)
def test_columns_without_a_bound_have_no_workspace(kit: Any, config: Config) -> None:
    """The workspace of a kernel for 256 columns would be written past its end with 4096."""
    with gemmdb.inductor.force(config):
        run = torch.compile(lambda x, w: x @ w.to(x.dtype))
        x = kit.rand(16, 512)
        for n in (256, 4096):
            w = kit.ints(512, n)
            torch._dynamo.mark_dynamic(w, 1)
            kit.close(run(x, w), x.double() @ w.double())
    (product,) = gemmdb.inductor.stats()["products"]
    assert product["config"] == ATEN.text
    assert "no bound" in product["note"]


def test_gradients_of_a_symbolic_batch(kit: Any, make: Any) -> None:
    """The weight's gradient sums over the symbolic size: K, along neither operand's rows."""
    w = (kit.rand(256, 128) / 16).requires_grad_()
    config = make("tile")
    with gemmdb.inductor.force(config):
        run = torch.compile(lambda x: torch.relu(x @ w.t()).square().sum())
        for m in (64, 3, 200):
            x = kit.rand(m, 128)
            torch._dynamo.mark_dynamic(x, 0)
            w.grad = None
            run(x).backward()
            exact = w.detach().double().requires_grad_()
            torch.relu(x.double() @ exact.t()).square().sum().backward()
            kit.close(w.grad, exact.grad)
    assert {entry["config"] for entry in gemmdb.inductor.stats()["products"]} == {config.text}


def cutlass_config() -> Config:
    """A config of our CUTLASS kernel; skips the test where it cannot be compiled."""
    from gemmdb.inductor.lower.adapter import cutlass

    if cutlass.compiler_rejection():
        pytest.skip(str(cutlass.compiler_rejection()))
    return Config.of(
        "cutlass", "gemm", tile_m=64, tile_n=128, tile_k=64, cluster_m=1, cluster_n=1, schedule="pingpong", split_k=1,
        swizzle=1, raster="auto", swap=1,
    )  # fmt: skip


def test_cutlass_takes_any_number_of_rows(kit: Any) -> None:
    config = cutlass_config()
    w = kit.rand(1024, 512) / 16
    dynamic(kit, lambda x: x @ w.t().to(x.dtype), config, lambda m: kit.rand(m, 512))


@pytest.mark.parametrize("spelling", ["mm", "addmm", "mixed_mm"])
def test_kernels_share_a_range(kit: Any, make: Any, spelling: str) -> None:
    parts = (
        (16, make("narrow", split_k=2)),
        (128, make("tile", block_m=64)),
        (None, ATEN),
    )
    found = FakeSession(
        lambda query: Hit("exact", parts[1][1], 1.0, 1.0, "", {}, parts) if query.ranges else None, Policy(), None
    )
    w, wide, b = kit.ints(1024, 512), kit.rand(1024, 512) / 16, kit.rand(1024)
    model = {
        "mm": lambda x: torch.relu(x @ wide.t().to(x.dtype)),
        "addmm": lambda x: torch.nn.functional.linear(x, wide.to(x.dtype), b.to(x.dtype)),
        "mixed_mm": lambda x: x @ w.t().to(x.dtype),
    }[spelling]
    with active.use(found):
        run = torch.compile(model)
        for m in (64, *SIZES):
            x = kit.rand(m, 512)
            torch._dynamo.mark_dynamic(x, 0)
            kit.close(run(x), model(x.double()))
    (product,) = gemmdb.inductor.stats()["products"]
    assert product["note"] == ""


@pytest.fixture
def captured() -> Iterator[None]:
    """Dynamo takes what depends on data into the graph."""
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        yield


def masks(rows: int) -> Any:
    """A mask over 1024 rows that chooses so many of them, here and there."""
    return torch.randperm(1024, device="cuda") < rows


def masked(kit: Any, model: Callable[[Any], Any], sizes: Sequence[int] = CHOSEN) -> dict[str, Any]:
    """The one product of `model` of the rows that a mask chooses, compiled once and right for each number of them."""
    run = torch.compile(lambda x, which: model(x[which]), fullgraph=True)
    x = kit.rand(1024, 512)
    for m in (64, *sizes):
        which = masks(m)
        kit.close(run(x, which), model(x[which].double()))
    stats = gemmdb.inductor.stats()
    (product,) = stats["products"]
    assert (product["count"], stats["benchmarked"], stats["errors"]) == (1, 0, [])
    return dict(product)


@pytest.mark.parametrize("config", [*OPEN, *BOUNDED], ids=str, indirect=True)
@pytest.mark.parametrize("op", ["mm", "addmm", "mixed_mm"])
def test_rows_that_come_out_of_data(kit: Any, captured: None, config: Config, op: str) -> None:
    """`x[mask]` has at most as many rows as `x`: a bound, so that workspaces and tensor maps do as well."""
    wide, b, w = kit.rand(1024, 512) / 16, kit.rand(1024), kit.ints(1024, 512)
    model = {
        "mm": lambda x: torch.relu(x @ wide.t().to(x.dtype)),
        "addmm": lambda x: torch.nn.functional.linear(x, wide.to(x.dtype), b.to(x.dtype)),
        "mixed_mm": lambda x: x @ w.t().to(x.dtype),
    }[op]
    with gemmdb.inductor.force(config):
        product = masked(kit, model)
    assert (product["config"], product["note"], product["ranges"]) == (config.text, "", {"m": [0, 1024]})


def test_cutlass_takes_rows_that_come_out_of_data_but_not_none(kit: Any, captured: None) -> None:
    config = cutlass_config()
    w = kit.rand(1024, 512) / 16

    def some(x: Any) -> Any:
        torch._check(x.shape[0] >= 1)
        return x @ w.t().to(x.dtype)

    with gemmdb.inductor.force(config):
        assert masked(kit, some, CHOSEN[1:])["config"] == config.text
        kit.anew()
        product = masked(kit, lambda x: x @ w.t().to(x.dtype))
    assert (product["config"], product["note"]) == (ATEN.text, "CUTLASS rejects a GEMM of size zero")


@pytest.mark.parametrize("config", OPEN, ids=str, indirect=True)
def test_rows_that_come_out_of_data_without_a_bound_are_atens(kit: Any, captured: None, config: Config) -> None:
    """Offsets have 32 bits, and there is no guard on a size that nobody knows before."""
    w = kit.rand(1024, 512) / 16

    def repeated(x: Any, counts: Any) -> Any:
        rows = counts.sum().item()
        torch._check(rows >= 0)
        return x.repeat(rows, 1) @ w.t().to(x.dtype)

    with gemmdb.inductor.force(config):
        run = torch.compile(repeated, fullgraph=True)
        x = kit.rand(1, 512)
        for m in (64, *CHOSEN):
            counts = torch.tensor([m // 2, m - m // 2], device="cuda")
            kit.close(run(x, counts), repeated(x.double(), counts))
    (product,) = gemmdb.inductor.stats()["products"]
    assert product["config"] == ATEN.text
    assert "data-dependent sizes have no bound" in product["note"]


@pytest.mark.parametrize("config", OPEN, ids=str, indirect=True)
def test_columns_of_an_int8_weight_that_come_out_of_data(kit: Any, captured: None, config: Config) -> None:
    w = kit.ints(1024, 512)
    with gemmdb.inductor.force(config):
        run = torch.compile(lambda x, which: torch.nn.functional.linear(x, w[which].to(x.dtype)), fullgraph=True)
        x = kit.rand(48, 512)
        for n in (256, *CHOSEN):
            which = masks(n)
            kit.close(run(x, which), x.double() @ w[which].double().t())
    (product,) = gemmdb.inductor.stats()["products"]
    assert product["ranges"] == {"n": [0, 1024]}
    assert (product["config"], product["note"]) == (config.text, "")


def test_kernels_share_rows_that_come_out_of_data(kit: Any, make: Any, captured: None) -> None:
    parts = ((16, make("narrow", split_k=2)), (128, make("tile", block_m=64)), (None, ATEN))
    found = FakeSession(lambda query: Hit("exact", parts[1][1], 1.0, 1.0, "", {}, parts), Policy(), None)
    w = kit.ints(1024, 512)
    with active.use(found):
        product = masked(kit, lambda x: x @ w.t().to(x.dtype))
    assert (product["note"], product["ranges"]) == ("", {"m": [0, 1024]})


WRAPPERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "python": ({}, {}),
    "cpp": ({"cpp_wrapper": True}, {}),
    "reduce-overhead": ({}, {"mode": "reduce-overhead"}),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("spelling", ["relu", "gate", "kept", "addmm", "alone", "int8"])
@pytest.mark.timeout(300)
def test_several_kernels_and_calls_share_a_node(
    kit: Any, make: Any, cublaslt: None, wrapper: str, spelling: str
) -> None:
    """Whichever computes it, what follows is fused where it can be, and no size compiles anything again."""
    config, options = WRAPPERS[wrapper]
    calls = ((32, kit.algorithm()), (128, ATEN)) if spelling != "int8" else ()
    parts = ((8, make("tile")), (16, make("narrow", split_k=2)), *calls, (None, make("tile", block_m=64)))
    session = FakeSession(lambda query: Hit("exact", parts[0][1], 1.0, 1.0, "", {}, parts), Policy(), None)
    wide, b, r = kit.rand(1024, 512) / 16, kit.rand(1024), kit.rand(1, 1024)
    w, s = kit.ints(1024, 512), torch.rand(1024, device="cuda", dtype=torch.bfloat16) / 64
    linear, silu = torch.nn.functional.linear, torch.nn.functional.silu
    model = {
        "relu": lambda x: torch.relu(x @ wide.t().to(x.dtype)),
        "gate": lambda x: silu(x @ wide.t().to(x.dtype)) * (x.sum(1, keepdim=True) + r.to(x.dtype)),
        "kept": lambda x: torch.cat([y := x @ wide.t().to(x.dtype), torch.relu(y) * 2]),
        "addmm": lambda x: torch.tanh(linear(x, wide.to(x.dtype), b.to(x.dtype))),
        "alone": lambda x: x @ wide.t().to(x.dtype),
        "int8": lambda x: torch.relu(linear(x, w.to(x.dtype)) * s.to(x.dtype)),
    }[spelling]
    with torch.no_grad(), active.use(session), torch._inductor.config.patch(**config):
        run = torch.compile(model, **options)
        for m in (64, *SIZES, 8, 9, 33, 128, *SIZES):
            x = kit.rand(m, 512)
            torch._dynamo.mark_dynamic(x, 0, min=2, max=1024)
            kit.close(run(x).clone(), model(x.double()))
    (product,) = gemmdb.inductor.stats()["products"]
    assert (product["note"], product["ranges"]) == ("", {"m": [2, 1024]})
    assert gemmdb.inductor.stats()["errors"] == []
