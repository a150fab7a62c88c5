"""A range of M that is divided among several kernels: one compile, right for every size."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.ranges import SIZES
from kit.sessions import FakeSession

import gemmdb.inductor
from gemmdb.hit import Hit
from gemmdb.inductor.entry import active, enable
from gemmdb.kernels.config import ATEN
from gemmdb.settings import Policy


@pytest.fixture(autouse=True)
def installed(clean: None) -> None:
    """`active.use` does not put gemmdb into Inductor, as `force` does."""
    enable.install()


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
