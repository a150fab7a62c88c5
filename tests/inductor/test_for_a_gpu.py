"""What a GPU would be handed: the lowering as it is, with an H200's tables and rules, up to where a GPU is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gemmdb.inductor  # noqa: E402
from gemmdb import Config  # noqa: E402
from gemmdb.device import Device  # noqa: E402
from gemmdb.inductor import extract, triton_kernels  # noqa: E402
from gemmdb.inductor.adapter import cutlass, templates  # noqa: E402

linear = torch.nn.functional.linear
H200 = Device("cuda", "sm90", "NVIDIA H200", 132, 140, figures={"smem_bytes": 232448.0})
NARROW = Config.of(
    "triton", "narrow", block_m=16, block_n=64, block_k=64, split_k=2, swap=0, stagger=1, rows="mask", dequant="cast",
    warps=4, stages=3,
)  # fmt: skip
CUTLASS = Config.of(
    "cutlass", "gemm", tile_m=64, tile_n=64, tile_k=128, cluster_m=1, cluster_n=1, schedule="pingpong", split_k=1,
    swizzle=1, raster="auto", swap=1,
)  # fmt: skip


@pytest.fixture(autouse=True)
def reached(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the kernels that would have been generated; what is served instead is ATen."""
    found: list[str] = []

    def stop(kernel: Any, *rest: object) -> object:
        found.append(getattr(kernel, "template", "cutlass"))
        raise triton_kernels.Refused("that far")

    monkeypatch.setattr(extract, "device", lambda of: H200)
    monkeypatch.setattr(templates, "multiprocessors", lambda node: 132)
    monkeypatch.setattr(templates, "product", stop)
    monkeypatch.setattr(cutlass, "missing", lambda: "")
    monkeypatch.setattr(cutlass, "product", stop)
    return found


def asked(model: Callable[..., Any], *inputs: Any, config: Any, **options: Any) -> dict[str, Any]:
    """The one product of `model` in the journal, compiled with `config`; the result is right."""
    torch._dynamo.reset()
    gemmdb.inductor.reset_stats()
    with torch.no_grad(), gemmdb.inductor.force(config, "test"):
        found = torch.compile(model, **options)(*inputs)
    wanted = model(*inputs).double()
    assert (found.double() - wanted).abs().max() <= 0.02 * wanted.abs().max()
    assert gemmdb.inductor.stats()["errors"] == []
    (product,) = gemmdb.inductor.stats()["products"]
    return dict(product)


def ints(*sizes: int) -> Any:
    return torch.randint(-9, 9, sizes, dtype=torch.int8)


def rand(*sizes: int) -> Any:
    return torch.randn(*sizes).bfloat16()


@pytest.mark.parametrize(("config", "reason"), [(NARROW, "no bound"), (CUTLASS, "depends on N and K")])
def test_a_symbolic_n_of_an_int8_weight_has_a_range(config: Config, reason: str, reached: list[str]) -> None:
    w, s = ints(1024, 512), torch.rand(1024).bfloat16()
    torch._dynamo.mark_dynamic(w, 0)
    torch._dynamo.mark_dynamic(s, 0)
    product = asked(lambda x, w, s: linear(x, w.to(x.dtype)) * s, rand(16, 512), w, s, config=config)
    assert product["ranges"] == {"n": [2, None]}
    assert reason in product["note"]
    assert reached == []
