"""CUTLASS kernels beside Triton's and ATen in one node, by the number of rows."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.for_a_gpu import CUTLASS
from kit.sessions import FakeSession

import gemmdb.inductor
from gemmdb import Config, Policy
from gemmdb.hit import Hit
from gemmdb.inductor.entry import active
from gemmdb.inductor.lower.adapter import cutlass
from gemmdb.kernels.config import ATEN

WIDE = Config.of("cutlass", "gemm", **{**CUTLASS.values, "tile_m": 128})
ROWS = (64, 2, 16, 17, 100, 101, 256, 257, 1000)


@pytest.mark.parametrize("spelling", ["mm", "residual"])
def test_cutlass_shares_a_range(kit: Any, make: Any, spelling: str) -> None:
    if cutlass.compiler_rejection():
        pytest.skip(str(cutlass.compiler_rejection()))
    parts = (16, make("tile", block_m=64)), (100, CUTLASS), (256, WIDE), (None, ATEN)
    w = kit.rand(1024, 512) / 16
    model = {
        "mm": lambda x, r: torch.relu(x @ w.t().to(x.dtype)),
        "residual": lambda x, r: r + x @ w.t().to(x.dtype),
    }[spelling]
    found = FakeSession(
        lambda query: Hit("exact", CUTLASS, 1.0, 1.0, "", {}, parts) if query.ranges else None,
        Policy(compile_cost=10), None,
    )  # fmt: skip
    with active.use(found):
        run = torch.compile(model)
        for m in ROWS:
            x, r = kit.rand(m, 512), kit.rand(m, 1024)
            for one in (x, r):
                torch._dynamo.mark_dynamic(one, 0)
            kit.close(run(x, r), model(x.double(), r.double()))
    (product,) = gemmdb.inductor.stats()["products"]
    assert product["note"] == ""
