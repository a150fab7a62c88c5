"""What cuBLASLt refuses, when a program is compiled or later, is ATen."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.gpu import algorithm, anew, compiled, rand, served

import gemmdb.inductor
from gemmdb.cublaslt import launch
from gemmdb.kernels.config import ATEN

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("clean", "cublaslt")]
M, N, K = 96, 512, 8192


def linear(x: Any, w: Any) -> Any:
    return torch.mm(x, w.t())


def test_what_the_library_refuses_is_aten() -> None:
    x, w = rand(M, K), rand(N, K)
    for config in (algorithm(algo=4000), algorithm(tile=65_000), algorithm(stages=60_000)):
        anew()
        found, code = compiled(linear, x, w, config=config)
        assert "gemmdb_cublaslt" not in code
        assert served() == [ATEN.text]
        (product,) = gemmdb.inductor.stats()["products"]
        assert "does not support the algorithm here" in product["note"]
        assert torch.equal(found, torch.mm(x, w.t()))


def test_a_call_that_the_library_refuses_later_is_aten(caplog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a cached graph and another cuBLASLt."""
    x, w = rand(M, K), rand(N, K)
    run = launch.prepare(torch.mm, 0, {**_ATTRIBUTES, "algo": 4000}, _fields())
    out = torch.empty(M, N, device="cuda", dtype=torch.bfloat16)
    for _ in range(2):
        run(x, w, out, torch.cuda.current_stream().cuda_stream)
    assert torch.equal(out, torch.mm(x, w.t()))
    assert sum("compiled for cuBLASLt" in message for message in caplog.messages) == 1


_ATTRIBUTES = {name: int(value) for name, value in algorithm().values.items()}


def _fields() -> tuple[Any, ...]:
    return M, N, K, ("bf16", True, K, 0), ("bf16", False, K, 0), ("bf16", True, N, 0), "fp32", "", 1
