"""Behaviour of Inductor that gemmdb keeps, on a GPU: ops, bias kinds, sizes, numerics, epilogues, shared memory.

A test's name begins with the row of `docs/contributing/origins.md` that it shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gemmdb.inductor
from gemmdb import Config, Problem
from gemmdb.devices import detect

pytestmark = pytest.mark.usefixtures("clean")
F = torch.nn.functional
BF16 = torch.bfloat16


@pytest.fixture
def tile(make: Any) -> Callable[..., Config]:
    """Configs of the kernel `tile`, square unless said otherwise."""
    return lambda **changes: make("tile", **{"block_m": 64, **changes})


def test_s1_mm_falls_back_to_aten_when_a_kernel_cannot_be_had(kit: Any, tile: Any) -> None:
    a, b = kit.rand(256, 512), kit.rand(512, 256)
    wanted = a.double() @ b.double()
    found, _ = kit.compiled(torch.mm, a, b, config=tile())
    kit.close(found, wanted)
    assert kit.served() == [tile().text]
    kit.anew()
    found, code = kit.compiled(torch.mm, a, b, config=tile(block_m=256, block_n=256, block_k=256, stages=4))
    kit.close(found, wanted)
    assert "extern_kernels.mm" in code


@pytest.mark.parametrize("m", [17, 100, 1024])
def test_s2_int_mm_is_exact(kit: Any, tile: Any, m: int) -> None:
    a, b = kit.ints(m, 256), kit.ints(512, 256)
    found, _ = kit.compiled(lambda a, b: torch._int_mm(a, b.t()), a, b, config=tile(block_k=64))
    assert kit.served() == [tile(block_k=64).text]
    assert torch.equal(found.cpu(), (a.cpu().int() @ b.cpu().int().t()))


def test_s3_addmm_bias_kinds(kit: Any, tile: Any) -> None:
    a, b = kit.rand(96, 512), kit.rand(512, 256)
    for bias in (kit.rand(256), kit.rand(96, 256), kit.rand(96, 1)):
        kit.anew()
        found, _ = kit.compiled(torch.addmm, bias, a, b, config=tile())
        kit.close(found, bias.double() + a.double() @ b.double())
        assert kit.served() == [tile().text]


def test_s4_mixed_mm_and_its_heuristics_configs(kit: Any, tile: Any) -> None:
    """fp16 by int8 and uint8 with the tiles that the A100 rules name, and a single row."""
    for m, config in (
        (16, tile(block_m=16, block_k=128, stages=5)),
        (32, tile(block_m=32, block_n=32, block_k=128, stages=5)),
        (64, tile(block_m=64, block_n=32, block_k=128, stages=5)),
        (1, tile(block_m=16)),
    ):
        x, w = kit.rand(m, 4096, dtype="float16"), kit.ints(4096, 4096)
        for weight in (w, (w.int() + 128).to(torch.uint8)):
            kit.anew()
            found, _ = kit.compiled(lambda x, w: F.linear(x, w.to(x.dtype)) * 2**-8, x, weight, config=config)
            kit.close(found, (x.double() @ weight.double().t()) * 2**-8)
            assert kit.served() == [config.text]


def test_s5_the_int32_result_is_never_materialised(kit: Any, tile: Any) -> None:
    a, b, s = kit.ints(2048, 1024), kit.ints(2048, 1024), kit.rand(2048)

    def model(a: Any, b: Any, s: Any) -> Any:
        return (torch._int_mm(a, b.t()) * s).to(BF16)

    found, code = kit.compiled(model, a, b, s, config=tile())
    assert kit.served() == [tile().text]
    assert "torch.int32" not in code.partition("def call")[2]
    kit.close(found, (a.double() @ b.double().t()) * s.double())
    with gemmdb.inductor.force(tile()):
        run = torch.compile(model)
        run(a, b, s)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run(a, b, s)
        taken = torch.cuda.max_memory_allocated() - before
    assert taken < 2 * 2048 * 2048 * 2


@pytest.mark.parametrize("sizes", [(0, 64, 64), (16, 0, 64), (16, 64, 0), (1, 64, 64), (16, 1, 64), (16, 64, 1)])
def test_s6_sizes_of_zero_and_one(kit: Any, tile: Any, sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    a, b = kit.rand(m, k), kit.rand(k, n)
    found, _ = kit.compiled(torch.mm, a, b, config=tile(block_m=16))
    assert found.shape == (m, n)
    if m and n:
        # Half a unit of the largest element's last place, bf16 having 8 bits.
        kit.close(found, a.double() @ b.double(), 2**-8)


def test_s6_dynamic_sizes_are_right_at_every_size(kit: Any, tile: Any) -> None:
    with gemmdb.inductor.force(tile(block_m=16)):
        run = torch.compile(torch.mm, dynamic=True)
        for m, n, k in ((16, 64, 128), (33, 250, 77), (257, 513, 1025), (1, 64, 128)):
            a, b = kit.rand(m, k), kit.rand(k, n)
            kit.close(run(a, b), a.double() @ b.double(), 0.05)
    assert gemmdb.inductor.stats()["errors"] == []


def test_s7_numerics_and_offsets_are_kept(kit: Any, tile: Any) -> None:
    a, b = torch.randn(64, 513, device="cuda")[:, 1:], torch.randn(512, 64, device="cuda")
    wanted = a.double() @ b.double()
    errors = {}
    for precision in ("highest", "high"):
        kit.anew()
        torch.set_float32_matmul_precision(precision)
        try:
            found, _ = kit.compiled(torch.mm, a, b, config=tile(block_k=32))
        finally:
            torch.set_float32_matmul_precision("highest")
        errors[precision] = float((found.double() - wanted).abs().max() / wanted.abs().max())
        assert kit.served() == [tile(block_k=32).text]
    assert errors["highest"] < 1e-5 < errors["high"] < 5e-3


EPILOGUES: dict[str, Callable[[Any], Any]] = {
    "times": lambda y: y * 3.0,
    "affine": lambda y: y * 3.3 - 1.234,
    "relu": torch.relu,
    "relu6": lambda y: torch.clamp(y, 0.0, 6.0),
    "shape": lambda y: y / y.shape[1],
    "dtype": lambda y: y.to(torch.float32),
}


@pytest.mark.parametrize(
    "config",
    [("tile", {"block_m": 64}), ("tile", {"block_m": 64, "split_k": 2, "reduce": "kernel"})],
    ids=["whole", "split"],
    indirect=True,
)
@pytest.mark.parametrize("name", EPILOGUES)
def test_s18_epilogues(kit: Any, name: str, config: Config) -> None:
    a, b, after = kit.rand(128, 512), kit.rand(512, 256), EPILOGUES[name]
    found, code = kit.compiled(lambda a, b: after(a @ b), a, b, config=config)
    kit.close(found, after(a.double() @ b.double()).double())
    assert kit.served() == [config.text]
    kernels = code.partition("def call")[2].count(".run(")
    assert kernels == (1 if config.values["split_k"] == 1 else 2)


@pytest.mark.parametrize("bias", [(4096, 2048), (2048,), (4096, 1)])
def test_s19_addmm_with_alpha_and_beta(kit: Any, tile: Any, bias: tuple[int, ...]) -> None:
    a, b, c = (
        kit.rand(4096, 25728, dtype="float16") / 160,
        kit.rand(25728, 2048, dtype="float16"),
        kit.rand(*bias, dtype="float16"),
    )
    found, _ = kit.compiled(lambda c, a, b: torch.addmm(c, a, b, alpha=2.0, beta=0.4), c, a, b, config=tile())
    kit.close(found, 0.4 * c.double() + 2.0 * (a.double() @ b.double()))
    assert kit.served() == [tile().text]


def test_s19_linear_with_a_bias(kit: Any, tile: Any) -> None:
    x, w, c = kit.rand(2048, 4096), kit.rand(4096, 4096) / 64, kit.rand(4096)
    found, _ = kit.compiled(F.linear, x, w, c, config=tile())
    kit.close(found, x.double() @ w.double().t() + c.double())
    assert kit.served() == [tile().text]


def test_s19_bmm_is_a_gemm_and_not_one_of_our_kernels(kit: Any, tile: Any) -> None:
    a, b = kit.rand(10, 128, 64), kit.rand(10, 64, 128)
    found, _ = kit.compiled(torch.bmm, a, b, config=tile())
    kit.close(found, a.double() @ b.double())
    stats = gemmdb.inductor.stats()
    (product,) = stats["products"]
    assert product["problem"].startswith("bmm batch=10 m=128 n=128 k=64 ")
    assert (product["config"], stats["uncovered"]) == ("aten:default", {})
    assert "does not solve bmm" in product["note"]


def test_s20_int_mm_and_mixed_mm_of_odd_sizes(kit: Any, tile: Any) -> None:
    a, b = kit.ints(100, 16), kit.ints(32, 16)
    config = tile(block_k=32)
    found, _ = kit.compiled(lambda a, b: torch._int_mm(a, b.t()), a, b, config=config)
    assert torch.equal(found.cpu(), a.cpu().int() @ b.cpu().int().t())
    assert kit.served() == [config.text]
    kit.anew()
    x, w = kit.rand(100, 16, dtype="float16"), kit.ints(100, 16)
    found, _ = kit.compiled(lambda x, w: x @ w.t().to(x.dtype), x, w, config=tile(block_m=16))
    kit.close(found, x.double() @ w.double().t())
    assert kit.served() == [tile(block_m=16).text]


def test_s24_legality_comes_from_the_devices_own_limit(kit: Any, tile: Any) -> None:
    device = detect.cuda()
    assert device is not None
    large = tile(block_m=128, block_n=128, block_k=64, warps=8, stages=4)
    problem = Problem.gemm("mm", m=512, n=512, k=512)
    assert large.rejection(problem, device) is None
    found, _ = kit.compiled(lambda a, b: a @ b.t(), kit.rand(512, 512), kit.rand(512, 512), config=large)
    assert kit.served() == [large.text]
    assert "shared memory" in str(
        tile(block_m=256, block_n=128, block_k=64, warps=8, stages=8).rejection(problem, device)
    )
    assert found.isfinite().all()
