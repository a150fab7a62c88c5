"""Sizes that depend on data, on our kernels: one compile, right for every size."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.ranges import BOUNDED, OPEN, SIZES, cutlass_config
from kit.sessions import FakeSession

import gemmdb.inductor
from gemmdb import Config
from gemmdb.hit import Hit
from gemmdb.inductor.entry import active, enable
from gemmdb.kernels.config import ATEN
from gemmdb.settings import Policy

CHOSEN = (0, 1, *SIZES)
"""Numbers of rows that a mask chooses: only what comes out of data may be 0 or 1 without another compile."""


@pytest.fixture(autouse=True)
def installed(clean: None) -> None:
    """`active.use` does not put gemmdb into Inductor, as `force` does."""
    enable.install()


@pytest.fixture
def captured() -> Iterator[None]:
    """Dynamo takes what depends on data into the graph."""
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        yield


def masks(rows: int) -> Any:
    """A mask over 1024 rows that chooses so many of them, here and there."""
    return torch.randperm(1024, device="cuda") < rows


def masked(kit: Any, model: Callable[[Any], Any], sizes: Sequence[int] = CHOSEN) -> dict[str, Any]:
    """The one GEMM of `model` of the rows that a mask chooses, compiled once and right for each number of them."""
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
