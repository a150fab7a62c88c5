"""An integer GEMM with the scales of its rows and columns, as torchao writes it, on a GPU: one kernel stores the
scaled product, and no int32 matrix reaches memory."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gemmdb.inductor
from gemmdb import Config
from gemmdb.kernels.cutlass import compiler, headers

pytestmark = pytest.mark.usefixtures("clean")
B, S, N, K = 2, 24, 1008, 1040
TILE = ("tile", {"block_m": 64, "block_n": 128})
TRITON = [
    TILE,
    ("tile", {"swap": 1}),
    ("tile", {"split_k": 3, "reduce": "fixup"}),
    ("tile", {"load": "tma"}),
    ("narrow", {}),
    ("narrow", {"split_k": 2}),
    ("persistent", {}),
    ("inductor_mm", {}),
]
SPLIT = ("tile", {"split_k": 3, "reduce": "kernel"})
"""A second kernel sums what the first one stores of each slice of K."""
CUTLASS = [("cutlass", {"swap": swap}) for swap in (0, 1)]
CUTLASS.append(("cutlass", {"tile_n": 128, "schedule": "cooperative", "split_k": 2}))
without_nvcc = pytest.mark.skipif(compiler() is None or headers() is None, reason="needs nvcc and nvidia-cutlass")
FLAGS = {
    "coordinate_descent_tuning": True, "coordinate_descent_check_all_directions": True,
    "force_fuse_int_mm_with_mul": True, "epilogue_fusion": True,
}  # fmt: skip
"""What torchao's `quantize_` sets."""


def config_of(kit: Any, name: str, changes: dict[str, Any]) -> Config:
    if name == "inductor_mm":
        return Config.of("triton", name, block_m=64, block_n=128, block_k=64, group_m=8, warps=4, stages=3)
    if name == "cutlass":
        base = {
            "tile_m": 64, "tile_n": 64, "tile_k": 128, "cluster_m": 1, "cluster_n": 1, "schedule": "pingpong",
            "split_k": 1, "swizzle": 1, "raster": "auto", "swap": 1,
        }  # fmt: skip
        return Config.of("cutlass", "gemm", **{**base, **changes})
    made: Config = kit.make(name, **changes)
    return made


def torchao(x: Any, rows: Any, w: Any, columns: Any) -> Any:
    """`Int8DynamicActivationInt8WeightConfig`: quantised activations [B, S, K], their scales [B, S, 1], a weight [N, K]
    with scales [N, 1]."""
    product = torch._int_mm(x.reshape(-1, x.shape[-1]), w.t())
    product = (product * rows.reshape(-1, 1).expand(product.shape)).to(torch.bfloat16)
    return (product * columns.flatten()).reshape(*x.shape[:-1], -1).to(torch.bfloat16)


def columns_first(x: Any, rows: Any, w: Any, columns: Any) -> Any:
    product = torch._int_mm(x.reshape(-1, x.shape[-1]), w.t()).view(*x.shape[:-1], -1)
    return (product * columns.flatten().float() * rows.float()).to(torch.bfloat16)


def one_scale(x: Any, rows: Any, w: Any, columns: Any) -> Any:
    return (torch._int_mm(x.reshape(-1, x.shape[-1]), w.t()) * rows.reshape(-1, 1)).view(*x.shape[:-1], -1)


def biased(x: Any, rows: Any, w: Any, columns: Any) -> Any:
    """torchao adds the bias before its last cast."""
    product = torch._int_mm(x.reshape(-1, x.shape[-1]), w.t())
    product = (product * rows.reshape(-1, 1).expand(product.shape)).to(torch.bfloat16)
    product = (product * columns.flatten()).reshape(*x.shape[:-1], -1) + columns.flatten().to(torch.bfloat16)
    return torch.nn.functional.silu(product.to(torch.bfloat16))


def normed(x: Any, rows: Any, w: Any, columns: Any) -> Any:
    """A reduction of rows follows: Inductor fuses no more of it into the product's kernel."""
    return torch.nn.functional.rms_norm(torchao(x, rows, w, columns).float(), (w.shape[0],))


def zero_points(x: Any, rows: Any, w: Any, columns: Any) -> Any:
    """The same with asymmetric activations; a zero point of 3 everywhere."""
    product = torch._int_mm(x.reshape(-1, x.shape[-1]), w.t())
    product = (product * rows.reshape(-1, 1).expand(product.shape)).to(torch.bfloat16)
    shift = (3 * rows.reshape(-1, 1)) * w.sum(dim=-1).to(rows.dtype)
    return ((product - shift.to(torch.bfloat16)) * columns.flatten()).reshape(*x.shape[:-1], -1).to(torch.bfloat16)


def inputs(kit: Any, sequence: int = S) -> tuple[Any, ...]:
    """Scales of neighbours differ much, so that a wrong row's or column's scale is far off."""
    rows = (2.0 ** (torch.arange(B * sequence, device="cuda") % 5 - 6)).view(B, sequence, 1).to(torch.bfloat16)
    columns = (2.0 ** (torch.arange(N, device="cuda") % 7 - 10)).view(N, 1) * 1.125
    return kit.ints(B, sequence, K), rows, kit.ints(N, K), columns


def exact(model: Callable[..., Any], given: tuple[Any, ...]) -> tuple[Any, Any]:
    """(the result from the exact integers, the magnitude of the terms that it is a sum of), in fp64."""
    x, rows, w, columns = (tensor.double() for tensor in given)
    columns = columns.flatten()
    product = (x @ w.t()) * rows
    if model is one_scale:
        return product, product.abs()
    if model is zero_points:
        shift = 3 * rows * w.sum(-1)
        return (product - shift) * columns, (product.abs() + shift.abs()) * columns
    product = product * columns
    if model is biased:
        return torch.nn.functional.silu(product + columns), product.abs() + columns
    if model is normed:
        product = torch.nn.functional.rms_norm(product, (N,))
    return product, product.abs()


def near(found: Any, model: Callable[..., Any], given: tuple[Any, ...]) -> bool:
    """Whether a result is right but for three roundings to bf16."""
    wanted, magnitude = exact(model, given)
    return found.shape == wanted.shape and bool(((found.double() - wanted).abs() <= 2**-6 * magnitude).all())


def check(kit: Any, model: Callable[..., Any], config: Config, **how: Any) -> str:
    given = inputs(kit)
    found, code = kit.compiled(model, *given, config=config, **how)
    (product,) = gemmdb.inductor.stats()["products"]
    assert (product["config"], product["note"]) == (config.text, "")
    assert " fusion=scale " in product["problem"]
    assert near(found, model, given)
    assert "extern_kernels." not in code.partition("async_compile.wait")[2]
    return code


def in_int32(code: str) -> list[str]:
    """The lines that allocate an int32 matrix of the product's size."""
    return [line for line in code.splitlines() if "torch.int32" in line and f"{N}" in line and "empty_strided" in line]


MODELS = [torchao, columns_first, one_scale, biased, normed, zero_points]


@pytest.mark.parametrize(("name", "changes"), TRITON, ids=str)
@pytest.mark.parametrize("model", [torchao, normed, zero_points])
def test_a_triton_kernel_stores_the_scaled_gemm(kit: Any, model: Any, name: str, changes: Any) -> None:
    code = check(kit, model, config_of(kit, name, changes))
    assert code.count("@triton_heuristics.template(") == 1
    assert not in_int32(code), in_int32(code)


@pytest.mark.parametrize("model", MODELS)
def test_all_that_is_elementwise_is_one_kernel(kit: Any, model: Any) -> None:
    code = check(kit, model, config_of(kit, *TILE))
    others = code.count("@triton_heuristics.") - code.count("@triton_heuristics.template(")
    # A norm is a reduction of rows, and the zero points' term needs the sums of the weight.
    assert others == {normed: 1, zero_points: 1}.get(model, 0)
    assert not in_int32(code), in_int32(code)


@pytest.mark.parametrize("model", [torchao, normed])
def test_slices_of_k_are_summed_and_scaled_in_one_kernel(kit: Any, model: Any) -> None:
    code = check(kit, model, config_of(kit, *SPLIT))
    # The slices themselves; the sum of them is not stored.
    assert len(in_int32(code)) == 1


@without_nvcc
@pytest.mark.parametrize(("name", "changes"), CUTLASS, ids=str)
@pytest.mark.parametrize("model", [torchao, columns_first, biased, normed, zero_points])
def test_a_cutlass_kernel_stores_the_scaled_gemm(kit: Any, model: Any, name: str, changes: Any) -> None:
    code = check(kit, model, config_of(kit, name, changes))
    called = code.partition("async_compile.wait")[2]
    assert code.count("async_compile.cuda(") == 1
    assert not in_int32(code), in_int32(code)
    if model in (torchao, columns_first):
        assert "triton_" not in called


@pytest.mark.parametrize("flags", [{}, FLAGS], ids=["plain", "torchao's flags"])
def test_flags_that_torchao_sets_change_nothing(kit: Any, flags: dict[str, Any]) -> None:
    torch.set_float32_matmul_precision("high")
    try:
        code = check(kit, biased, config_of(kit, *TILE), options=flags)
    finally:
        torch.set_float32_matmul_precision("highest")
    (product,) = gemmdb.inductor.stats()["products"]
    # SiLU computes in fp32, and Inductor drops a cast to bf16 that a cast to fp32 follows.
    assert product["problem"] == (
        f"int_mm m={B * S} n={N} k={K} a=int8:row:16 b=int8:col:16 out=fp32 bias=none scalars=unit fusion=scale"
        " fp32=ieee acc=int32 reduced=0 deterministic=0 constant=0"
    )
    assert code.count("@triton_heuristics.") == 1


@pytest.mark.parametrize("name", ["tile", pytest.param("cutlass", marks=without_nvcc)])
def test_one_compile_serves_all_lengths(kit: Any, name: str) -> None:
    config = config_of(kit, name, {})
    run = torch.compile(torchao)
    with gemmdb.inductor.force(config):
        for sequence in (24, 9, 40):
            given = inputs(kit, sequence)
            for tensor in given[:2]:
                torch._dynamo.mark_dynamic(tensor, 1)
            assert near(run(*given), torchao, given)
    (product,) = gemmdb.inductor.stats()["products"]
    assert (product["config"], product["note"]) == (config.text, "")


def test_torchao_itself(kit: Any) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    model = torch.nn.Linear(K, N, bias=False, device="cuda", dtype=torch.bfloat16)
    x = kit.rand(B, S, K)
    quantization.quantize_(model, quantization.Int8DynamicActivationInt8WeightConfig())
    with torch.no_grad():
        wanted = model(x)
        found, code = kit.compiled(model, x, config=config_of(kit, *TILE))
    (product,) = gemmdb.inductor.stats()["products"]
    assert product["note"] == ""
    assert " out=bf16 " in product["problem"]
    assert " fusion=scale " in product["problem"]
    assert not in_int32(code), in_int32(code)
    assert (found - wanted).abs().max() <= 0.02 * wanted.abs().max()
