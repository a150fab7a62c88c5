"""`gemmdb.inductor.compare` on a GPU: a model with and without a kernel of ours."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gemmdb.inductor
from gemmdb.inductor.entry.compare import compare

pytestmark = pytest.mark.usefixtures("clean")


def linear(x: Any, w: Any) -> Any:
    return torch.nn.functional.linear(x, w.to(x.dtype))


@pytest.mark.parametrize("recorded", [False, True])
def test_a_model_with_and_without_a_kernel(kit: Any, make: Any, tmp_path: Path, recorded: bool) -> None:
    x, w = kit.rand(8, 4096), kit.ints(4096, 4096)
    config = make("narrow", dequant="bits", block_k=128)
    with gemmdb.inductor.force(config):
        if recorded:
            with gemmdb.inductor.record(tmp_path / "workload.jsonl"):
                found = gemmdb.inductor.compare(linear, (x, w), calls=20)
        else:
            found = gemmdb.inductor.compare(linear, x, w, calls=20)
    assert list(found.configs.values()) == [config.text]
    assert found.error < 0.02
    assert found.default_us > 0
    assert found.gemmdb_us > 0


def test_the_gemm_that_got_slower_is_named(kit: Any, make: Any) -> None:
    # One warp of tiny tiles, against cuBLAS on a large GEMM.
    bad = make("tile", block_m=16, block_n=16, block_k=16, warps=1, stages=1)
    large, small = kit.rand(2048, 2048), kit.rand(2048, 64)

    def model(x: Any, w: Any, v: Any) -> Any:
        return torch.relu(x @ w.t()) @ v

    with gemmdb.inductor.force(bad):
        found = compare(model, kit.rand(2048, 2048), large, small, calls=10)
    assert found.speedup < 1
    (worst, *_) = sorted(found.slower, key=lambda text: -found.slower[text])
    assert worst.startswith("mm m=2048 n=2048 k=2048 ")
    assert worst in found.advice()
    assert found.error < 0.05
