"""`standalone_compile` runs kernels at the hint's rows while it compiles: no other memory may change."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.sessions import FakeSession

import gemmdb.inductor
from gemmdb.hit import Hit
from gemmdb.inductor.entry import active, enable
from gemmdb.kernels.config import ATEN
from gemmdb.settings import Policy

HINT, MOST = 64, 512


def around() -> list[Any]:
    """Tensors on both sides of free memory of many sizes, where a workspace may lie."""
    made = [torch.full(((1 + place % 7) << 17,), 7, dtype=torch.int32, device="cuda") for place in range(160)]
    kept = made[::2]
    torch.cuda.synchronize()
    return kept


def test_a_kernel_for_fewer_rows_than_the_hint_writes_to_no_other_memory(kit: Any, make: Any, clean: None) -> None:
    """Its workspace has room for 16 rows. Memory that a program used was overwritten, and kernels ended with illegal
    instructions."""
    enable.install()
    parts = ((16, make("narrow", block_m=16, split_k=4)), (None, ATEN))
    session = FakeSession(lambda query: Hit("exact", parts[0][1], 1.0, 2.0, "", {}, parts), Policy(), None)
    w = kit.rand(4096, 4096) / 64

    def standalone(graph: Any, inputs: list[Any]) -> Any:
        return torch._inductor.standalone_compile(graph, inputs, dynamic_shapes="from_graph")

    kept = around()
    with active.use(session), torch.no_grad():
        run = torch.compile(lambda x: x @ w.t(), backend=standalone)
        x = kit.rand(HINT, 4096)
        torch._dynamo.mark_dynamic(x, 0, min=2, max=MOST)
        run(x)
        torch.cuda.synchronize()
        assert all(bool((one == 7).all()) for one in kept)
        for rows in (2, 16, 17, HINT, MOST):
            x = kit.rand(rows, 4096)
            kit.close(run(x), x.double() @ w.double().t())
    (product,) = gemmdb.inductor.stats()["products"]
    assert product["note"] == ""
