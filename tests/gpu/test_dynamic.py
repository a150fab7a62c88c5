"""Symbolic sizes on our kernels: one compile, right for every size of its range."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.ranges import BOUNDED, OPEN, SIZES, cutlass_config

import gemmdb.inductor
from gemmdb import Config
from gemmdb.kernels.config import ATEN

pytestmark = pytest.mark.usefixtures("clean")


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


def test_cutlass_takes_any_number_of_rows(kit: Any) -> None:
    config = cutlass_config()
    w = kit.rand(1024, 512) / 16
    dynamic(kit, lambda x: x @ w.t().to(x.dtype), config, lambda m: kit.rand(m, 512))
