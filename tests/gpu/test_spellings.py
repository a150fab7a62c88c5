"""int8-weight GEMMs on a GPU, as programs write them: every spelling runs the one kernel that was asked for."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gemmdb.inductor
from gemmdb import Config

pytestmark = pytest.mark.usefixtures("clean")
KERNELS: list[tuple[str, dict[str, str | int]]] = [
    ("tile", {}),
    ("tile", {"split_k": 2, "reduce": "kernel"}),
    ("narrow", {"split_k": 2}),
    ("gemv", {}),
]
N, K = 1000, 512
Spelling = Callable[[Any, Any, Any], Any]


def linear(x: Any, w: Any) -> Any:
    return torch.nn.functional.linear(x, w.to(x.dtype))


BATCHES: dict[str, Spelling] = {
    "the last token": lambda x, w, s: linear(x[:, -1:], w) * s,
    "all but the first": lambda x, w, s: linear(x[:, 1:], w) * s,
    "transposed": lambda x, w, s: linear(x.transpose(0, 1), w) * s,
    "einsum": lambda x, w, s: torch.einsum("bsk,nk->bsn", x, w.to(x.dtype)) * s,
    "weight scaled": lambda x, w, s: torch.nn.functional.linear(x[:, 1:], w.to(x.dtype) * s[:, None]),
}
SCALES: dict[str, Spelling] = {
    "one number": lambda x, w, s: torch.nn.functional.linear(x, w.to(x.dtype) * s[:1]),
    "of no dimension": lambda x, w, s: torch.nn.functional.linear(x, w.to(x.dtype) * s[0]),
    "a Python number": lambda x, w, s: torch.nn.functional.linear(x, w.to(x.dtype) * 0.0123),
}
PARTS: dict[str, Spelling] = {
    "rows": lambda x, w, s: linear(x, w[200:600]) * s[200:600],
    "columns": lambda x, w, s: linear(x[..., 128:384], w[:, 128:384]) * s,
    "a view": lambda x, w, s: linear(x, w.view(2, N // 2, K)[1]) * s[N // 2 :],
}


def check(kit: Any, model: Spelling, config: Config, w: Any) -> None:
    """The model runs `config` and nothing else of ours, on activations [2, 4, K]."""
    x, s = kit.rand(2, 4, K), torch.rand(N, device="cuda").to(torch.bfloat16) / 64
    with torch.no_grad():
        found, code = kit.compiled(model, x, w, s, config=config)
    kit.close(found, model(x.double(), w, s.double()))
    assert kit.served() == [config.text]
    assert gemmdb.inductor.stats()["uncovered"] == {}
    assert "_weight_int8pack_mm" not in code
    assert "extern_kernels." not in code.partition("async_compile.wait")[2]


@pytest.mark.parametrize("config", KERNELS, ids=str, indirect=True)
@pytest.mark.parametrize("name", [*BATCHES, *SCALES, *PARTS])
def test_a_weight_that_is_stored_nk(kit: Any, name: str, config: Config) -> None:
    check(kit, {**BATCHES, **SCALES, **PARTS}[name], config, kit.ints(N, K))


@pytest.mark.parametrize("config", KERNELS[:3], ids=str, indirect=True)
def test_activations_stored_kn(kit: Any, config: Config) -> None:  # `gemv` needs a K that runs along memory.
    check(kit, lambda x, w, s: linear(x.view(2, K, 4).permute(0, 2, 1), w) * s, config, kit.ints(N, K))


STORED_KN: dict[str, Spelling] = {
    "matmul": lambda x, w, s: (x @ w.to(x.dtype)) * s,
    "scaled before": lambda x, w, s: x @ (w.to(x.dtype) * s),
    "transposed batch": lambda x, w, s: (x.transpose(0, 1) @ w.to(x.dtype)) * s,
    "one number before": lambda x, w, s: x @ (w.to(x.dtype) * s[:1]),
    "columns": lambda x, w, s: (x @ w[:, 200:600].to(x.dtype)) * s[200:600],
}


@pytest.mark.parametrize("config", KERNELS[:3], ids=str, indirect=True)
@pytest.mark.parametrize("name", STORED_KN)
def test_a_weight_that_is_stored_kn(kit: Any, name: str, config: Config) -> None:
    check(kit, STORED_KN[name], config, kit.ints(K, N))
    (product,) = gemmdb.inductor.stats()["products"]
    assert " b=int8:row" in product["problem"]


EARLY: dict[str, Spelling] = {
    "per channel": lambda x, w, s: torch.nn.functional.linear(x, w.to(x.dtype) * s[:, None]),
    "per tensor": SCALES["one number"],
    "of no dimension": SCALES["of no dimension"],
    "transposed": lambda x, w, s: x @ (s * w.t().to(x.dtype)),
    "all but the first": BATCHES["weight scaled"],
    "biased": lambda x, w, s: torch.nn.functional.linear(x, w.to(x.dtype) * s[:, None], s),
}
SCALED_INSIDE = [*KERNELS, ("tile", {"split_k": 2, "reduce": "fixup"}), ("persistent", {})]


def heavy(kit: Any, weight: str) -> tuple[Any, Any, Any]:
    """Activations [2, 4, K], a weight and a scale in fp16 whose product overflows unless it is scaled before it is
    stored: a sum of the bare integers is about K * 16 * 100."""
    x = kit.rand(2, 4, K, dtype="float16") + 16
    w = torch.randint(80, 120, (N, K), device="cuda").to(getattr(torch, weight))
    return x, w, (torch.rand(N, device="cuda") / 64).half()


@pytest.mark.parametrize("weight", ["int8", "uint8"])
@pytest.mark.parametrize("config", SCALED_INSIDE, ids=str, indirect=True)
@pytest.mark.parametrize("name", EARLY)
def test_an_early_scale_in_fp16(kit: Any, name: str, config: Config, weight: str) -> None:
    x, w, s = heavy(kit, weight)
    assert not linear(x, w).isfinite().any()
    with torch.no_grad():
        found, _ = kit.compiled(EARLY[name], x, w, s, config=config)
    kit.close(found, EARLY[name](x.double(), w, s.double()), 0.005)
    assert kit.served() == [config.text]
    assert gemmdb.inductor.stats()["products"][0]["problem"].startswith("mixed_mm ")


@pytest.mark.parametrize("name", EARLY)
def test_an_early_scale_in_fp16_where_no_kernel_is_possible(kit: Any, make: Any, name: str) -> None:
    """The weight is scaled first, and rounded as it is without gemmdb: what turns out to be impossible only when the
    GEMM is lowered has been rewritten by then."""
    from gemmdb.inductor.lower import triton

    def refuse(*operands: Any) -> None:
        raise triton.Refused("the test refuses it")

    x, w, s = heavy(kit, "int8")
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton, "lower", refuse)
        found, _ = kit.compiled(EARLY[name], x, w, s, config=make("tile"))
        kit.close(found, EARLY[name](x.double(), w, s.double()), 0.005)
    assert gemmdb.inductor.stats()["products"][0]["note"] == "the test refuses it"
    assert kit.served() == ["aten:default"]


def test_gradients_of_activations_that_are_no_one_matrix(kit: Any, make: Any) -> None:
    w, s = kit.ints(N, K), torch.rand(N, device="cuda").to(torch.bfloat16) / 64
    x = kit.rand(2, 4, K).requires_grad_()
    with gemmdb.inductor.force(make("tile")):
        torch.compile(BATCHES["all but the first"])(x, w, s).sum().backward()
    wide = x.detach().double().requires_grad_()
    BATCHES["all but the first"](wide, w, s.double()).sum().backward()
    kit.close(x.grad, wide.grad, 0.03)
    assert gemmdb.inductor.stats()["errors"] == []
    assert kit.served() == [make("tile").text] * 2


@pytest.mark.parametrize("config", KERNELS[:1], ids=str, indirect=True)
def test_a_scale_in_the_memory_of_the_cpu(kit: Any, config: Config) -> None:
    """Eager multiplies by it; it stays outside the kernel, which cannot read it."""
    x, w, one = kit.rand(8, K), kit.ints(N, K), torch.tensor(0.0125, dtype=torch.bfloat16)
    for model in (
        lambda x, w, s: linear(x, w) * s,
        lambda x, w, s: torch.nn.functional.linear(x, w.to(x.dtype) * s),
    ):
        kit.anew()
        found, _ = kit.compiled(model, x, w, one, config=config)
        kit.close(found, linear(x.double(), w) * one.double())
